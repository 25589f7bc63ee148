"""Rows as deliveries: one module for each way to hold a row, and what they share."""

from ruststream_core_sql._subscription._lease import LeaseSubscription

__all__ = ["LeaseSubscription"]
