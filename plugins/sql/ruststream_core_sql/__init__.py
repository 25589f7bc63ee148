"""Task queues in the service's own tables, and an outbox and inbox over any broker."""

from ruststream_core_sql._broker import SqlBroker
from ruststream_core_sql._outbox import Inbox, InboxTransaction, Outbox
from ruststream_core_sql.config import InboxQueue, SqlPublish
from ruststream_core_sql.errors import BatchRolledBack
from ruststream_core_sql.repository import Repository
from ruststream_core_sql.roles import Role, inbox, outbox

__all__ = [
    "BatchRolledBack",
    "Inbox",
    "InboxQueue",
    "InboxTransaction",
    "Outbox",
    "Repository",
    "Role",
    "SqlBroker",
    "SqlPublish",
    "inbox",
    "outbox",
]
