"""Every exception of the framework and of its transports.

A transport maps its client's exceptions into this hierarchy at its edge, `raise ... from exc`. Whatever else
escapes from a transport is wrapped as `PluginError` and ends the subscription that raised it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "Closed",
    "ConfigError",
    "ConnectError",
    "DecodeError",
    "EncodeError",
    "LeaseLost",
    "PluginError",
    "PublishError",
    "Revoked",
    "RustStreamError",
    "SettleError",
    "Superseded",
    "Unsupported",
]


class RustStreamError(Exception):
    """Base of all errors below."""


class ConfigError(RustStreamError):
    """The wiring is wrong: it names the route or setting and the remedy. Trying again cannot help."""


class ConnectError(RustStreamError):
    """A server cannot be reached or refuses for now. Trying again may help."""


class Closed(RustStreamError):
    """The object was used before its start or after its end."""


class Unsupported(RustStreamError):
    """The transport cannot do what was asked, and emulating it would weaken a guarantee."""


class PublishError(RustStreamError):
    """A message was not accepted by the broker.

    After `send_many`, `failed` maps the index of each message that was not accepted to its cause; messages
    that are not in it were accepted.
    """

    def __init__(self, message: str = "", *, failed: Mapping[int, BaseException] | None = None) -> None:
        super().__init__(message)
        self.failed: Mapping[int, BaseException] = failed or {}


class SettleError(RustStreamError):
    """A delivery is not ours any more: whatever is settled now changes nothing at the broker."""


class LeaseLost(SettleError):
    """The time for which the broker had lent the delivery ran out, or somebody else took it."""


class Revoked(SettleError):
    """The broker moved the delivery's partition, channel or connection away."""


class Superseded(SettleError):
    """A seek or a reset made the delivery obsolete."""


class DecodeError(RustStreamError):
    """A payload, header or placeholder is not what the handler's annotation asks for."""


class EncodeError(RustStreamError):
    """A value cannot be written as a payload or as headers."""


class PluginError(RustStreamError):
    """A transport or a codec raised what its contract does not name; the cause is attached."""
