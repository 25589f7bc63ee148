"""The two codecs that the core brings, on msgspec. Pydantic's types go to pydantic, which is imported only for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from ruststream_core.codecs._annotations import describe, selects_pydantic
from ruststream_core.codecs._check import check, refused
from ruststream_core.codecs._contract import Decoder
from ruststream_core.codecs._walk import culprit, has_non_finite_mark, has_null, non_finite
from ruststream_core.errors import EncodeError

__all__ = ["JsonCodec", "MsgPackCodec"]

EncodeHook = Callable[[Any], Any]
DecodeHook = Callable[[type, Any], Any]

# MessagePack's timestamp, which has no offset, in its three sizes. All hold the byte 255, which few documents do.
_has_timestamp_mark = re.compile(rb"\xd6\xff|\xd7\xff|\xc7\x0c\xff").search

_parse = msgspec.json.Decoder(msgspec.Raw).decode


class JsonCodec:
    """JSON, UTF-8, strict in what it reads and in what it writes.

    Args:
        strict: False lets msgspec and pydantic convert between kinds (`"5"` into an int field) as each defines it;
            for pydantic the model's own configuration then decides.
        enc_hook: turns a value that msgspec does not know into one that it does, for types of other libraries.
        dec_hook: the way back: called with the annotated type and the plain value.
    """

    name: ClassVar[str] = "json"
    content_type: ClassVar[str] = "application/json"

    def __init__(
        self, *, strict: bool = True, enc_hook: EncodeHook | None = None, dec_hook: DecodeHook | None = None
    ) -> None:
        self._strict = strict
        self._enc_hook = enc_hook
        self._dec_hook = dec_hook
        self._write = msgspec.json.Encoder(enc_hook=self._foreign).encode
        self._plain: set[type] = set()

    def __repr__(self) -> str:
        return f"JsonCodec(strict={self._strict})"

    def decoder(self, annotation: Any) -> Decoder:
        """Msgspec's own bound `decode` where no type of pydantic's is at the top of the annotation.

        Raises:
            ConfigError: neither library can decode such a type.
        """
        if selects_pydantic(annotation):
            from ruststream_core.codecs._pydantic import json_decoder  # noqa: PLC0415  imports pydantic

            return json_decoder(annotation, strict=self._strict)
        check(annotation, self.name, hooked=self._dec_hook is not None)
        try:
            return msgspec.json.Decoder(annotation, strict=self._strict, dec_hook=self._dec_hook).decode
        except Exception as exc:
            raise refused(annotation, self.name, str(exc)) from exc

    def encode(self, value: Any) -> bytes:
        """Write one value as JSON.

        Raises:
            EncodeError: a value of no known type, NaN or infinity, text with lone surrogates, a cycle.
        """
        try:
            if type(value) not in self._plain and self._is_pydantic(value):
                return _dump(value)
            out = self._write(value)
        except Exception as exc:
            raise _unwritable(self.name, self._write, value, exc) from exc
        # Non-finite floats come out as null, so only a document with a null in it can hide one.
        if has_null(out) and (path := non_finite(value)) is not None:
            raise _not_finite(self.name, value, path)
        return out

    def _is_pydantic(self, value: Any) -> bool:
        if getattr(value, "__pydantic_serializer__", None) is not None:
            return True
        self._plain.add(type(value))  # the answer costs more than writing a small Struct
        return False

    def _foreign(self, value: Any) -> Any:
        if getattr(value, "__pydantic_serializer__", None) is not None:
            return msgspec.Raw(_dump(value))
        if self._enc_hook is None:
            raise NotImplementedError
        return self._enc_hook(value)


class MsgPackCodec:
    """MessagePack. Datetimes are written as RFC 3339 text, which keeps their offset; timestamps are read, too.

    A pydantic model is its JSON form, written as MessagePack: binary values and NaN in a document for one are
    refused.

    Args:
        strict: see `JsonCodec`.
        allow_nan: write NaN and infinity, which MessagePack defines, instead of refusing them.
        enc_hook: see `JsonCodec`.
        dec_hook: see `JsonCodec`.
    """

    name: ClassVar[str] = "msgpack"
    content_type: ClassVar[str] = "application/msgpack"

    def __init__(
        self,
        *,
        strict: bool = True,
        allow_nan: bool = False,
        enc_hook: EncodeHook | None = None,
        dec_hook: DecodeHook | None = None,
    ) -> None:
        self._strict = strict
        self._allow_nan = allow_nan
        self._enc_hook = enc_hook
        self._dec_hook = dec_hook
        self._write = msgspec.msgpack.Encoder(enc_hook=self._foreign).encode

    def __repr__(self) -> str:
        return f"MsgPackCodec(strict={self._strict}, allow_nan={self._allow_nan})"

    def decoder(self, annotation: Any) -> Decoder:
        """Msgspec's own bound `decode` where no type of pydantic's is at the top of the annotation.

        Raises:
            ConfigError: neither library can decode such a type.
        """
        if selects_pydantic(annotation):
            from ruststream_core.codecs._pydantic import msgpack_decoder  # noqa: PLC0415  imports pydantic

            return msgpack_decoder(annotation, strict=self._strict)
        check(annotation, self.name, hooked=self._dec_hook is not None)
        try:
            return msgspec.msgpack.Decoder(annotation, strict=self._strict, dec_hook=self._dec_hook).decode
        except Exception as exc:
            raise refused(annotation, self.name, str(exc)) from exc

    def encode(self, value: Any) -> bytes:
        """Write one value as MessagePack.

        Raises:
            EncodeError: a value of no known type, an integer beyond 64 bits, NaN or infinity unless allowed, text
                with lone surrogates, a cycle.
        """
        try:
            native = getattr(value, "__pydantic_serializer__", None) is None
            out = self._write(value if native else self._foreign(value))
            if 0xFF in out and _has_timestamp_mark(out):
                out = self._with_text_datetimes(value)
        except Exception as exc:
            raise _unwritable(self.name, self._write, value, exc) from exc
        if not self._allow_nan and 0xCB in out and has_non_finite_mark(out) and (path := non_finite(value)) is not None:
            raise _not_finite(self.name, value, path)
        return out

    def _with_text_datetimes(self, value: Any) -> bytes:
        plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview), enc_hook=self._foreign)
        return self._write(plain)

    def _foreign(self, value: Any) -> Any:
        if getattr(value, "__pydantic_serializer__", None) is not None:
            return msgspec.json.decode(_dump(value))
        if self._enc_hook is None:
            raise NotImplementedError
        return self._enc_hook(value)


def _dump(value: Any) -> bytes:
    """Write a model or dataclass of pydantic's as JSON, by alias, so that the same model reads it again."""
    out: bytes = value.__pydantic_serializer__.to_json(value, by_alias=True)
    if has_null(out) and (path := non_finite(value)) is not None:
        raise _not_finite("json", value, path)
    # A model may ask for these two, and then it is no JSON. Looking for their first byte first costs a tenth.
    if (0x4E in out and b"NaN" in out) or (0x49 in out and b"Infinity" in out):
        _parse(out)
    return out


def _unwritable(codec: str, write: Callable[[Any], bytes], value: Any, exc: Exception) -> EncodeError:
    if isinstance(exc, EncodeError):
        return exc
    cyclic = isinstance(exc, RecursionError)
    reason = "it contains itself or is nested too deeply" if cyclic else exc
    path = "$" if cyclic else culprit(value, write)
    return EncodeError(f"{describe(type(value))} cannot be written as {codec}, at {path}: {reason}")


def _not_finite(codec: str, value: Any, path: str) -> EncodeError:
    remedy = "make it None, or use MsgPackCodec(allow_nan=True)"
    return EncodeError(f"{describe(type(value))} cannot be written as {codec}, at {path}: NaN or infinity; {remedy}")
