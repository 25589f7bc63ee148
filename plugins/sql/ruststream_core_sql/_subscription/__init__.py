"""Rows as deliveries: one module for each way to hold a row, and what they share."""

from __future__ import annotations

from ruststream_core_sql._subscription._base import Opening, SqlSubscription
from ruststream_core_sql._subscription._lease import LeaseSubscription

__all__ = ["Opening", "open_subscription"]


async def open_subscription(opening: Opening) -> SqlSubscription:
    """Open a subscription in the form that the table has.

    Raises:
        ConfigError, ConnectError: as `Connection.subscribe`.
    """
    subscription = LeaseSubscription(opening)
    await subscription.start()
    return subscription
