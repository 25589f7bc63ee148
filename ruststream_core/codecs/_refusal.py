"""Why a payload was refused, told without its content: names and positions may be logged, values may not."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ruststream_core.errors import DecodeError

__all__ = ["InvalidPayload", "decode_error_path", "describe_decode_error"]

ROOT = "$"

# msgspec puts the path last, and dictionary keys, which are content, as `[...]`.
_MSGSPEC_PATH = re.compile(r" - at (?:`key` in )?`(\$(?:\.[\w-]+|\[(?:\d+|\.\.\.)\])*)`$")
_BYTE = re.compile(r"\(byte (\d+)\)$")
# The beginnings of msgspec's messages that hold no content; what follows them may (an enum's unknown value).
_WHOLE = ("Expected `", "Object missing required field `", "Number out of range", "Integer value out of range")
_PREFIXES = (
    "Invalid RFC3339 encoded",
    "Invalid ISO8601",
    "Invalid UUID",
    "Invalid base64",
    "Invalid decimal string",
    "Invalid enum value",
    "Invalid value",
    "Object contains unknown field",
)


class InvalidPayload(DecodeError):
    """A payload that this package refuses itself. Its text holds no content; the cause, if any, may.

    Attributes:
        reason: what is wrong.
        path: where in the document, `$.items[0].id`; `$` is all of it.
    """

    def __init__(self, reason: str, path: str = ROOT) -> None:
        super().__init__(reason if path == ROOT else f"{reason} at {path}")
        self.reason = reason
        self.path = path


def decode_error_path(exc: BaseException) -> str:
    """Where in the document a decoder failed, without a word of the payload.

    Returns:
        A path such as `$.items[0].id`, in which `[...]` stands for a key of a dictionary; `byte 7` where the
        document is malformed there; `$` where no more is known.
    """
    if isinstance(exc, InvalidPayload):
        return exc.path
    if isinstance(exc, UnicodeDecodeError):
        return f"byte {exc.start}"
    if isinstance(exc, msgspec.DecodeError):
        text = str(exc)
        if found := _MSGSPEC_PATH.search(text):
            return found[1]
        return f"byte {at[1]}" if (at := _BYTE.search(text)) else ROOT
    if is_pydantic_error(exc):
        return pydantic_refusal(exc).path
    return ROOT


def describe_decode_error(exc: BaseException) -> str:
    """One line for the log: what is wrong and where, without a word of the payload.

    The text of the exception itself may quote the payload, and so may its traceback.
    """
    path = decode_error_path(exc)
    reason = _reason(exc)
    return reason if path == ROOT else f"{reason} at {path}"


def _reason(exc: BaseException) -> str:
    if isinstance(exc, InvalidPayload):
        return exc.reason
    if isinstance(exc, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(exc, RecursionError):
        return "nested too deeply"
    if isinstance(exc, msgspec.DecodeError):
        return _msgspec_reason(exc)
    if is_pydantic_error(exc):
        return pydantic_refusal(exc).reason
    return type(exc).__name__


def _msgspec_reason(exc: msgspec.DecodeError) -> str:
    text = str(exc)
    if not isinstance(exc, msgspec.ValidationError):
        return _BYTE.sub("", text).rstrip()
    if text.startswith(_WHOLE):
        return text.partition(" - at ")[0]
    return next((prefix for prefix in _PREFIXES if text.startswith(prefix)), "Not valid for its type")


def is_pydantic_error(exc: BaseException) -> bool:
    """Whether pydantic raised it; pydantic is not imported for the question."""
    return type(exc).__name__ == "ValidationError" and type(exc).__module__.startswith("pydantic_core")


def pydantic_refusal(exc: Any, names: frozenset[str] = frozenset()) -> InvalidPayload:
    """The first error of a pydantic ValidationError.

    Args:
        exc: the error.
        names: the words of the schema. Any other word of the location came from the payload and is hidden.
    """
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    more = exc.error_count() - 1
    reason = first["type"] if not more else f"{first['type']} (and {more} more)"
    return InvalidPayload(reason, ROOT + "".join(_step(part, names) for part in first["loc"]))


def _step(part: int | str, names: frozenset[str]) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part in names else "[...]"
