"""From bytes to values and back. Everything is decided when a route is mounted: a codec builds one bound decoder.

What a payload means, by the handler's annotation:

- `bytes`: the body itself, whatever the codec. `str`: the body as UTF-8 text, not as a JSON string. Both also with
  `| None`, and then an empty body is None. Publishing does the same: bytes and text travel verbatim, None is an
  empty body (a tombstone).
- anything else: a document in the route's codec. An empty body is None only where the annotation admits None.

What the documents hold, in every codec and whether msgspec or pydantic reads them:

- Kinds are strict: no number from text, no bool from a number, no datetime from either. `JsonCodec(strict=False)`
  and `MsgPackCodec(strict=False)` give what msgspec and the pydantic model themselves call lax.
- A union takes the member of the payload's own kind: `int | str` gives `"100"` as text, `bool | int` gives `true` as
  bool, `int | float` gives `1` as int and `1.0` as float. Several records need tags. `ambiguities` names the rest.
- Integers are exact or an error. JSON carries any size, MessagePack those of 64 bits.
- `Decimal` is text, and is read from text or from a JSON number digit by digit, never through a float.
- NaN and infinity are refused when written; JSON cannot hold them when read. MessagePack defines them, so a
  MessagePack document from elsewhere may bring them, and `MsgPackCodec(allow_nan=True)` may send them.
- `datetime` is RFC 3339 text: the instant and the offset to the minute survive, a zone's name does not, naive stays
  naive. MessagePack timestamps from elsewhere are read too. `date`, `time` and `timedelta` are ISO 8601 text.
- `bytes` inside a document is base64 in JSON and binary in MessagePack. Pydantic's own form of bytes is UTF-8 text
  unless the model sets `ser_json_bytes` and `val_json_bytes`.
- `UUID` is text, `Enum` its value; sets, tuples and named tuples are arrays; records are objects.
"""

from ruststream_core.codecs._ambiguous import ambiguities
from ruststream_core.codecs._bind import (
    bind_decoder,
    bind_header_decoder,
    content_type_of,
    encode_value,
    needs_headers,
)
from ruststream_core.codecs._builtin import JsonCodec, MsgPackCodec
from ruststream_core.codecs._choice import ContentTypeCodec, resolve_codec
from ruststream_core.codecs._contract import Codec, Decoder, HeaderCodec, HeaderDecoder
from ruststream_core.codecs._refusal import InvalidPayload, decode_error_path, describe_decode_error

__all__ = [
    "Codec",
    "ContentTypeCodec",
    "Decoder",
    "HeaderCodec",
    "HeaderDecoder",
    "InvalidPayload",
    "JsonCodec",
    "MsgPackCodec",
    "ambiguities",
    "bind_decoder",
    "bind_header_decoder",
    "content_type_of",
    "decode_error_path",
    "describe_decode_error",
    "encode_value",
    "needs_headers",
    "resolve_codec",
]
