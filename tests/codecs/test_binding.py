"""What a mounted route gets: the bare decoder in the plain case, and the rules for bodies that are no documents."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any, Generic, NewType, TypeVar

import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType, TypedDict

from ruststream_core.codecs import (
    Codec,
    JsonCodec,
    MsgPackCodec,
    bind_decoder,
    content_type_of,
    decode_error_path,
    describe_decode_error,
    encode_value,
)
from ruststream_core.errors import ConfigError, EncodeError, PluginError

JSON = JsonCodec()
CODECS = [pytest.param(JSON, id="json"), pytest.param(MsgPackCodec(), id="msgpack")]
T = TypeVar("T")


class Order(msgspec.Struct):
    id: int


class Page(msgspec.Struct, Generic[T]):
    items: list[T]


class Model(pydantic.BaseModel):
    id: int


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    counts: dict[str, int] = {}
    rows: list[Model] = []


@pydantic.dataclasses.dataclass
class Record:
    id: int


@pytest.mark.parametrize("codec", CODECS)
def test_the_plain_case_has_nothing_around_it(codec: Codec) -> None:
    """The bound `decode` of msgspec itself: no Python frame per message."""
    decode = bind_decoder(codec, Order)
    assert type(decode).__name__ == "builtin_function_or_method"
    assert isinstance(decode.__self__, (msgspec.json.Decoder, msgspec.msgpack.Decoder))  # type: ignore[attr-defined]


UserId = NewType("UserId", bytes)
Name = TypeAliasType("Name", str)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("annotation", [bytes, UserId, Annotated[bytes, "doc"]])
def test_bytes_take_the_codec_out_of_the_path(codec: Codec, annotation: Any) -> None:
    """The same object, unread: no document is asked for, and an empty body is an empty body."""
    payload = b"\xff{"
    decode = bind_decoder(codec, annotation)
    assert decode is bytes
    assert decode(payload) is payload
    assert decode(b"") == b""
    assert encode_value(codec, payload) is payload


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("annotation", [str, Name])
def test_text_is_the_body_itself(codec: Codec, annotation: Any) -> None:
    """Not a JSON string: what `nats pub` sends is what the handler gets."""
    decode = bind_decoder(codec, annotation)
    assert decode('"zoë"'.encode()) == '"zoë"'
    assert decode(b"") == ""
    assert encode_value(codec, "zoë") == "zoë".encode()
    with pytest.raises(UnicodeDecodeError) as caught:
        decode(b"ab\xff")
    assert decode_error_path(caught.value) == "byte 2"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "annotation",
    [int | None, Order | None, Any, None, Model | None, str | None, bytes | None, Annotated[Order | None, "doc"]],
    ids=str,
)
def test_an_empty_body_is_none_where_the_annotation_admits_it(codec: Codec, annotation: Any) -> None:
    """A tombstone, there and back."""
    assert bind_decoder(codec, annotation)(encode_value(codec, None)) is None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("annotation", [int, Order, Model, list[int], dict[str, Any], Record], ids=str)
def test_an_empty_body_is_a_decode_error_elsewhere(codec: Codec, annotation: Any) -> None:
    """Never None in a parameter that says otherwise."""
    with pytest.raises(msgspec.DecodeError):
        bind_decoder(codec, annotation)(b"")


@pytest.mark.parametrize("codec", CODECS)
def test_optional_text_and_bytes_stay_raw(codec: Codec) -> None:
    """`null` is a word, not a value, where the body is text."""
    assert bind_decoder(codec, str | None)(b"null") == "null"
    assert bind_decoder(codec, bytes | None)(b"null") == b"null"


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[str, msgspec.Meta(max_length=3)],
        Annotated[str, pydantic.Field(max_length=3)],
        Annotated[bytes, pydantic.Field(max_length=3)],
        Annotated[str, msgspec.Meta(max_length=3)] | None,
    ],
)
def test_constraints_of_text_and_bytes_are_applied(annotation: Any) -> None:
    """An ignored constraint is validation that only looks done."""
    decode = bind_decoder(JSON, annotation)
    assert decode(b"abc") in ("abc", b"abc")
    with pytest.raises((msgspec.ValidationError, pydantic.ValidationError)) as caught:
        decode(b"secret")
    assert "secret" not in describe_decode_error(caught.value)


@pytest.mark.parametrize(("annotation", "good"), [(pydantic.PositiveInt, b"1"), (list[pydantic.PositiveInt], b"[1]")])
def test_constraints_of_pydantic_select_pydantic(annotation: Any, good: bytes) -> None:
    """Msgspec would build a decoder and leave them out."""
    decode = bind_decoder(JSON, annotation)
    assert decode(good) in (1, [1])
    with pytest.raises(Exception, match="greater_than"):
        decode(good.replace(b"1", b"-1"))


class Unknown:
    pass


class HoldsModel(msgspec.Struct):
    model: Model


class HoldsRecord(msgspec.Struct):
    records: list[Record]


class HoldsDeep(msgspec.Struct):
    inner: list[HoldsModel]
    again: HoldsDeep | None = None


class RowOfModel(TypedDict):
    model: Model


@dataclasses.dataclass
class DataOfModel:
    model: Model | None


class HoldsUnknown(msgspec.Struct):
    thing: Unknown


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (HoldsModel, "model is pydantic's Model"),
        (HoldsRecord, "records is pydantic's Record"),
        (HoldsDeep, "inner.model is pydantic's Model"),
        (RowOfModel, "model is pydantic's Model"),
        (DataOfModel, "model is pydantic's Model"),
        (Page[Model], "items is pydantic's Model"),
        (list[HoldsModel], "model is pydantic's Model"),
        (Model | Order, "Order"),
        (HoldsUnknown, "thing is Unknown"),
        (Unknown, "Unknown"),
        (object, "use Any"),
        (complex, "complex"),
        (Callable[[], int], "Callable"),
    ],
    ids=str,
)
def test_types_that_would_fail_on_every_message_are_refused_when_mounted(
    codec: Codec, annotation: Any, words: str
) -> None:
    """Msgspec builds a decoder for most of these."""
    with pytest.raises(ConfigError) as caught:
        bind_decoder(codec, annotation)
    assert words in str(caught.value)


@pytest.mark.parametrize("annotation", [dict[bool, int], dict[tuple[int, int], int], dict[None, int]])
def test_keys_that_json_cannot_have_are_refused_when_mounted(annotation: Any) -> None:
    """MessagePack has them."""
    with pytest.raises(ConfigError, match="keys that a JSON object cannot have"):
        bind_decoder(JSON, annotation)
    assert callable(bind_decoder(MsgPackCodec(), annotation))


def test_a_model_with_an_undefined_name_is_refused_when_mounted() -> None:
    """Pydantic would only say so on the first message."""

    class Forward(pydantic.BaseModel):
        later: Later  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="not defined"):
        bind_decoder(JSON, Forward)


@pytest.mark.parametrize(
    ("annotation", "payload", "path"),
    [
        (Order, b'{"id":"secret"}', "$.id"),
        (list[Order], b'[{"id":1},{"id":"secret"}]', "$[1].id"),
        (dict[str, Order], b'{"secret":{"id":"x"}}', "$[...].id"),
        (dict[int, int], b'{"secret":1}', "$"),
        (Order, b'{"id":1', "$"),
        (Order, b"{secret}", "byte 1"),
        (Order, b"{}", "$"),
        (Model, b'{"id":"secret"}', "$.id"),
        (list[Model], b'[{"id":1},{"id":"secret"}]', "$[1].id"),
        (dict[str, Model], b'{"secret":{"id":"x"}}', "$[...].id"),
        (Strict, b'{"counts":{"secret":"x"}}', "$.counts[...]"),
        (Strict, b'{"secret":1}', "$[...]"),
        (Strict, b'{"rows":[{"id":1},{}]}', "$.rows[1].id"),
        (Model, b"{secret}", "byte 1"),
        (Any, b"[" * 100_000, "$"),
        (Model, b"[" * 100_000, "$"),
        (Any, b'"\xff"', "$"),
    ],
    ids=lambda item: str(item)[:40],
)
def test_a_refusal_tells_the_place_and_never_the_content(annotation: Any, payload: bytes, path: str) -> None:
    """Payloads hold personal data and logs are read by many; keys of dictionaries are content, too."""
    with pytest.raises(Exception) as caught:  # any exception of a decoder is a decode error
        bind_decoder(JSON, annotation)(payload)
    assert decode_error_path(caught.value) == path
    assert "secret" not in describe_decode_error(caught.value)


def test_texts_of_validators_are_not_repeated() -> None:
    """A `__post_init__` or hook may put the value into its message."""

    class Careless(msgspec.Struct):
        id: int

        def __post_init__(self) -> None:
            raise ValueError(f"secret {self.id}")

    with pytest.raises(msgspec.ValidationError) as caught:
        bind_decoder(JSON, list[Careless])(b'[{"id":1}]')
    assert describe_decode_error(caught.value) == "Not valid for its type at $[0]"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, object()]}, "$.a[1]"),
        ([Order(1), Order("\ud800")], "$[1].id"),  # type: ignore[arg-type]
        ({"some key": {1j}}, "$[...][0]"),
        (Page([Unknown()]), "$.items[0]"),
        (object(), "$"),
    ],
    ids=["object", "surrogate", "set", "struct", "root"],
)
def test_what_cannot_be_written_is_named_by_its_path(codec: Codec, value: Any, path: str) -> None:
    """Msgspec's own error says which type, not where."""
    with pytest.raises(EncodeError) as caught:
        encode_value(codec, value)
    assert f"at {path}:" in str(caught.value)


@pytest.mark.parametrize("codec", CODECS)
def test_a_cycle_is_an_encode_error(codec: Codec) -> None:
    """And looking for its path ends."""
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(EncodeError, match="contains itself"):
        encode_value(codec, cycle)


def test_text_with_a_lone_surrogate_is_an_encode_error() -> None:
    """It has no UTF-8 form."""
    with pytest.raises(EncodeError, match="character 1"):
        encode_value(JSON, "a\ud800")


def test_what_a_codec_of_a_plugin_raises_is_wrapped() -> None:
    """One hierarchy for the publisher, the cause attached."""

    class Broken:
        name = "broken"
        content_type = "application/x-broken"

        def decoder(self, annotation: Any) -> Any:
            raise AssertionError

        def encode(self, value: Any) -> bytes:
            raise KeyError("schema")

    with pytest.raises(PluginError, match="broken") as caught:
        encode_value(Broken(), 1)
    assert isinstance(caught.value.__cause__, KeyError)


def test_content_type_says_what_was_written() -> None:
    """Text is no JSON, and only the publisher knows what its bytes are."""
    assert [content_type_of(JSON, value) for value in (Order(1), "text", b"raw", bytearray(b"raw"), None)] == [
        "application/json",
        "text/plain",
        None,
        None,
        None,
    ]
    assert [encode_value(JSON, value) for value in (bytearray(b"ab"), memoryview(b"ab"))] == [b"ab", b"ab"]


def test_importing_and_using_the_codecs_imports_no_optional_library() -> None:
    """Pydantic takes longer to import than everything else together."""
    program = (
        "import sys, msgspec, dataclasses\n"
        "from ruststream_core import codecs\n"
        "S = msgspec.defstruct('S', [('a', 'int | None', None)])\n"
        "D = dataclasses.make_dataclass('D', [('a', int)])\n"
        "for codec in map(codecs.resolve_codec, ('json', 'msgpack', 'auto')):\n"
        "    for cls in (S, D):\n"
        "        assert codecs.bind_decoder(codec, cls)(codecs.encode_value(codec, cls(1))) == cls(1)\n"
        "        assert not codecs.ambiguities(cls)\n"
        "print([name for name in ('pydantic', 'attr', 'attrs') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
