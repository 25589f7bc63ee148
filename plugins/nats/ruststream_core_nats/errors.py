"""From the exceptions of nats-py and the errors of JetStream's interface to the core's hierarchy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ruststream_core.errors import Closed, ConfigError, ConnectError, PublishError, RustStreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JetStreamError", "as_connect_error", "as_publish_error", "describe"]


class JetStreamError(RustStreamError):
    """JetStream refused a request of this plugin.

    `code` is a status such as 404, `number` the server's own number of the error.
    """

    def __init__(self, description: str, *, code: int = 0, number: int = 0) -> None:
        super().__init__(description)
        self.code = code
        self.number = number

    @classmethod
    def of(cls, error: Mapping[str, object]) -> JetStreamError:
        """From the `error` object of an answer."""
        code, number = error.get("code"), error.get("err_code")
        return cls(
            str(error.get("description", "no description")),
            code=code if isinstance(code, int) else 0,
            number=number if isinstance(number, int) else 0,
        )

    def as_config_error(self, owner: str) -> ConfigError:
        """The same as an error of the wiring."""
        return ConfigError(f"{owner}: the server says {self} (JetStream error {self.number})")


def as_connect_error(where: str, error: BaseException) -> ConnectError | Closed:
    """What went wrong while talking to a server, with `where` naming server and user but no secret."""
    from nats import errors  # noqa: PLC0415  the client is imported with the first connection

    if isinstance(error, errors.ConnectionClosedError | errors.ConnectionDrainingError):
        return Closed(f"{where}: the connection is closed")
    return ConnectError(f"{where}: {describe(error)}")


def describe(error: BaseException) -> str:
    """An exception of the client as a phrase; several of them print as nothing."""
    text = str(error).removeprefix("nats: ").strip().strip("'")
    return text or type(error).__name__


def as_publish_error(subject: str, error: BaseException) -> PublishError:
    """Why a message did not leave."""
    return PublishError(f"publishing to {subject!r} failed: {describe(error)}")
