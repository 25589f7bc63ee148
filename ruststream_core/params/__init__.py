"""Handlers' parameters: what services write in signatures, and how that is read and bound.

`inspect_handler` reads a signature once, `HandlerSpec.bind` composes the handler with a route's services. Everything
else here is for services.
"""

from __future__ import annotations

from ruststream_core.params._bind import Bound, Services
from ruststream_core.params._headers import write_headers
from ruststream_core.params._live import Later, Undecodable
from ruststream_core.params._markers import (
    Depends,
    FromHeader,
    FromHeaders,
    FromPath,
    FromState,
    FromTransport,
    Out,
    Transaction,
)
from ruststream_core.params._signature import HandlerSpec, inspect_handler
from ruststream_core.params._types import (
    Context,
    Destination,
    HeadersLike,
    Message,
    MessageInfo,
    Publisher,
    Reply,
    Seeker,
    To,
    message,
    message_info,
)

__all__ = [
    "Bound",
    "Context",
    "Depends",
    "Destination",
    "FromHeader",
    "FromHeaders",
    "FromPath",
    "FromState",
    "FromTransport",
    "HandlerSpec",
    "HeadersLike",
    "Later",
    "Message",
    "MessageInfo",
    "Out",
    "Publisher",
    "Reply",
    "Seeker",
    "Services",
    "To",
    "Transaction",
    "Undecodable",
    "inspect_handler",
    "message",
    "message_info",
    "write_headers",
]
