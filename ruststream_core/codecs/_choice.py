"""Choosing a codec: by name when a route is mounted, or by each message's content type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from ruststream_core.codecs._builtin import JsonCodec, MsgPackCodec
from ruststream_core.codecs._contract import Codec, Decoder, HeaderDecoder
from ruststream_core.codecs._refusal import InvalidPayload
from ruststream_core.errors import ConfigError

__all__ = ["ContentTypeCodec", "resolve_codec"]

_SAME_AS = {
    "text/json": "application/json",
    "application/x-msgpack": "application/msgpack",
    "application/vnd.msgpack": "application/msgpack",
    "application/x-messagepack": "application/msgpack",
}
_CHARSETS = ("", "utf-8", "utf8", "us-ascii")


class ContentTypeCodec:
    """Decodes each message as its `content-type` header says, and as JSON where it has none.

    `application/x-msgpack` and other names in use, structured suffixes (`application/vnd.order+json`) and
    `charset=utf-8` are understood. Values are written by the first codec.

    Args:
        codecs: what may arrive; the first is the default. JSON and MessagePack if not given.
    """

    name: ClassVar[str] = "auto"

    def __init__(self, codecs: Iterable[Codec] = ()) -> None:
        self._codecs = tuple(codecs) or (JsonCodec(), MsgPackCodec())
        self._default = self._codecs[0]

    def __repr__(self) -> str:
        return f"ContentTypeCodec({[codec.name for codec in self._codecs]})"

    @property
    def content_type(self) -> str:
        """The media type of what `encode` returns."""
        return self._default.content_type

    def encode(self, value: Any) -> bytes:
        """Write one value by the first codec.

        Raises:
            EncodeError: the value cannot be written.
        """
        return self._default.encode(value)

    def decoder(self, annotation: Any) -> Decoder:
        """The decoder of a message without headers: the first codec's.

        Raises:
            ConfigError: it cannot decode such a type.
        """
        return self._default.decoder(annotation)

    def decoder_for_headers(self, annotation: Any) -> HeaderDecoder:
        """Build one decoder per codec and choose among them by the header.

        The decoder raises InvalidPayload for a content type that no codec has and for text that is not UTF-8.

        Raises:
            ConfigError: one of the codecs cannot decode such a type.
        """
        decoders = {codec.content_type: codec.decoder(annotation) for codec in self._codecs}
        default = decoders[self._default.content_type]

        def decode(payload: bytes, headers: Mapping[str, str]) -> Any:
            media_type = headers.get("content-type") if headers else None
            if not media_type:
                return default(payload)
            chosen = decoders.get(media_type) or decoders.get(_essence(media_type))
            if chosen is None:
                raise InvalidPayload(f"content-type {media_type[:100]!r} is none of {', '.join(decoders)}")
            return chosen(payload)

        return decode


def _essence(media_type: str) -> str:
    """The media type without parameters and in its usual name.

    Raises:
        InvalidPayload: a charset other than UTF-8.
    """
    essence, _, parameters = media_type.lower().partition(";")
    essence = essence.strip()
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in _CHARSETS:
            raise InvalidPayload(f"content-type {media_type[:100]!r} is not in UTF-8")
    family, plus, suffix = essence.rpartition("+")
    return f"application/{suffix}" if plus and family else _SAME_AS.get(essence, essence)


_BUILTIN: dict[str, Callable[[], Codec]] = {"json": JsonCodec, "msgpack": MsgPackCodec, "auto": ContentTypeCodec}


def resolve_codec(codec: str | Codec, extra: Mapping[str, Callable[[], Codec]] | None = None) -> Codec:
    """Turn the option `codec=` into a codec.

    Args:
        codec: a name (`json`, `msgpack`, `auto`, or one that a plugin brings), or a codec, which is returned.
        extra: the classes or factories that plugins bring, by name; called without arguments.

    Raises:
        ConfigError: an unknown name, a name that the core has already, or what is no codec.
    """
    if not isinstance(codec, str):
        return _checked(codec, "the option codec=")
    known = {**(extra or {}), **_BUILTIN}
    if (factory := known.get(codec)) is None:
        raise ConfigError(
            f"no codec is named {codec!r}; known are {', '.join(sorted(known))}. "
            f"Install the plugin that brings it (pip install ruststream-core-{codec}, if it is one of ours), "
            f"or pass a codec object as codec="
        )
    if extra and codec in extra and extra[codec] is not factory:
        raise ConfigError(f"a plugin brings a codec named {codec!r}, which the core has; it needs another name")
    return _checked(factory(), f"the codec {codec!r}")


def _checked(codec: object, what: str) -> Codec:
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise ConfigError(
            f"{what} is {codec!r}, which is no codec: it needs name, content_type, decoder(annotation) and "
            f"encode(value); give a name such as 'json', or an object, not its class"
        )
    return codec
