"""Messages that are recorded in the service's own database before they leave, and seen once where they arrive."""

from ruststream_core_sql._outbox._inbox import Inbox, InboxTransaction
from ruststream_core_sql._outbox._outbox import Outbox

__all__ = ["Inbox", "InboxTransaction", "Outbox"]
