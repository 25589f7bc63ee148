"""Rows as deliveries: one module for each way to hold a row, and what they share."""

from __future__ import annotations

from ruststream_core_sql._subscription._advisory import AdvisorySubscription
from ruststream_core_sql._subscription._base import Opening, SqlSubscription
from ruststream_core_sql._subscription._lease import LeaseSubscription
from ruststream_core_sql._subscription._lock import LockSubscription

__all__ = ["Opening", "SqlSubscription", "open_subscription"]


async def open_subscription(opening: Opening) -> SqlSubscription:
    """Open a subscription in the form that the table has.

    Raises:
        ConfigError, ConnectError: as `Connection.subscribe`.
    """
    form = opening.queue.table.form
    subscription: SqlSubscription
    if form == "lease":
        subscription = LeaseSubscription(opening)
    elif form == "lock":
        subscription = LockSubscription(opening)
    else:
        subscription = AdvisorySubscription(opening)
    await subscription.start()
    return subscription
