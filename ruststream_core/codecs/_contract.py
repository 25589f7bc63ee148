"""What a codec is. A plugin's codec needs nothing else: no base class, no registration beyond its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

__all__ = ["Codec", "Decoder", "HeaderCodec", "HeaderDecoder"]

Decoder: TypeAlias = Callable[[bytes], Any]
"""Bound to one annotation. Whatever it raises, cancellation apart, means that the payload does not decode."""

HeaderDecoder: TypeAlias = Callable[[bytes, Mapping[str, str]], Any]
"""The same for a codec that looks at a message's headers. The mapping finds names without regard to case."""


@runtime_checkable
class Codec(Protocol):
    """Values to bytes and back. One object serves every route, from any thread."""

    @property
    def name(self) -> str:
        """What `codec=` and error messages call it."""

    @property
    def content_type(self) -> str:
        """The media type of what `encode` returns."""

    def decoder(self, annotation: Any) -> Decoder:
        """Build the decoder of one annotation. Called once, when a route is mounted.

        Raises:
            ConfigError: the codec cannot decode such a type; names the type and the remedy.
        """

    def encode(self, value: Any) -> bytes:
        """Write one value as a document.

        Raises:
            EncodeError: the value cannot be written without changing it; names the path inside the value.
        """


@runtime_checkable
class HeaderCodec(Codec, Protocol):
    """A codec that decides by each message's headers. Its plain `decoder` is for messages that have none."""

    def decoder_for_headers(self, annotation: Any) -> HeaderDecoder:
        """Build the decoder of one annotation. Called once, when a route is mounted.

        Raises:
            ConfigError: the codec cannot decode such a type; names the type and the remedy.
        """
