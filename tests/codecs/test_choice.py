"""Codecs by name and by content type."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ruststream_core.codecs import (
    Codec,
    ContentTypeCodec,
    HeaderCodec,
    InvalidPayload,
    JsonCodec,
    MsgPackCodec,
    bind_decoder,
    bind_header_decoder,
    encode_value,
    needs_headers,
    resolve_codec,
)
from ruststream_core.errors import ConfigError
from ruststream_core.wire import Headers


class Order(msgspec.Struct):
    id: int


class Upper:
    """The smallest codec that a plugin could bring."""

    name = "upper"
    content_type = "text/x-upper"

    def decoder(self, annotation: Any) -> Any:
        return lambda payload: annotation(int(payload))

    def encode(self, value: Any) -> bytes:
        return str(value.id).encode()


@pytest.mark.parametrize(
    ("name", "cls"), [("json", JsonCodec), ("msgpack", MsgPackCodec), ("auto", ContentTypeCodec), ("upper", Upper)]
)
def test_names_resolve(name: str, cls: type) -> None:
    """The core's and those that plugins bring."""
    codec = resolve_codec(name, {"upper": Upper})
    assert type(codec) is cls
    assert codec.name == name
    assert bind_decoder(codec, Order)(encode_value(codec, Order(7))) == Order(7)
    assert resolve_codec(codec) is codec


def test_an_unknown_name_says_what_there_is() -> None:
    """And how to get what there is not."""
    with pytest.raises(ConfigError, match=r"'avro'; known are auto, json, msgpack, upper\. Install .*pip install"):
        resolve_codec("avro", {"upper": Upper})


def test_a_plugin_cannot_replace_a_codec_of_the_core() -> None:
    """Every route of the service would change its wire format with an installation."""
    with pytest.raises(ConfigError, match="another name"):
        resolve_codec("json", {"json": Upper})


@pytest.mark.parametrize("wrong", [JsonCodec, object(), 5])
def test_what_is_no_codec_is_refused(wrong: Any) -> None:
    """A class in place of an object above all."""
    with pytest.raises(ConfigError, match="no codec"):
        resolve_codec(wrong)
    with pytest.raises(ConfigError, match="no codec"):
        resolve_codec("wrong", {"wrong": lambda: wrong})


def test_only_the_choosing_codec_reads_headers() -> None:
    """And not even that one where the body is raw."""
    auto = ContentTypeCodec()
    assert isinstance(auto, HeaderCodec)
    assert all(isinstance(codec, Codec) for codec in (auto, JsonCodec(), MsgPackCodec(), Upper()))
    assert needs_headers(auto, Order)
    assert not any(needs_headers(auto, annotation) for annotation in (bytes, str, str | None))
    assert not any(needs_headers(codec, Order) for codec in (JsonCodec(), MsgPackCodec(), Upper()))


JSON_BODY, MSGPACK_BODY = msgspec.json.encode(Order(1)), msgspec.msgpack.encode(Order(1))


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        ({}, JSON_BODY),
        ({"content-type": ""}, JSON_BODY),
        ({"Content-Type": "application/json"}, JSON_BODY),
        ({"content-type": "application/json; charset=utf-8"}, JSON_BODY),
        ({"content-type": 'Application/JSON;charset="UTF-8"'}, JSON_BODY),
        ({"content-type": "application/vnd.order.v2+json"}, JSON_BODY),
        ({"content-type": "text/json"}, JSON_BODY),
        ({"CONTENT-TYPE": "application/msgpack"}, MSGPACK_BODY),
        ({"content-type": b"application/x-msgpack"}, MSGPACK_BODY),
        ({"content-type": "application/vnd.msgpack"}, MSGPACK_BODY),
        ({"content-type": "application/vnd.order+msgpack"}, MSGPACK_BODY),
    ],
    ids=str,
)
def test_each_message_is_decoded_as_it_says(headers: Any, payload: bytes) -> None:
    """A producer without the framework sets a content type or nothing at all."""
    decode = bind_header_decoder(ContentTypeCodec(), Order)
    assert decode(payload, Headers(headers)) == Order(1)


@pytest.mark.parametrize(
    "content_type", ["application/avro", "text/plain", "application/json; charset=latin-1", "+", ";"]
)
def test_an_unknown_content_type_is_a_decode_error(content_type: str) -> None:
    """A guess might succeed and mean something else."""
    decode = bind_header_decoder(ContentTypeCodec(), Order)
    with pytest.raises(InvalidPayload, match="content-type"):
        decode(JSON_BODY, Headers({"content-type": content_type}))


def test_an_empty_body_is_none_whatever_its_content_type() -> None:
    """A tombstone with a producer's usual headers is still a tombstone."""
    decode = bind_header_decoder(ContentTypeCodec(), Order | None)
    assert decode(b"", Headers({"content-type": "application/avro"})) is None
    assert decode(JSON_BODY, Headers()) == Order(1)


def test_other_codecs_can_be_chosen_among() -> None:
    """The first is the default and writes."""
    auto = ContentTypeCodec([Upper(), JsonCodec()])
    assert auto.content_type == "text/x-upper"
    assert encode_value(auto, Order(5)) == b"5"
    decode = bind_header_decoder(auto, Order)
    assert decode(b"5", Headers()) == Order(5)
    assert decode(JSON_BODY, Headers({"content-type": "application/json"})) == Order(1)


def test_a_type_that_one_of_the_codecs_cannot_decode_is_refused_when_mounted() -> None:
    """Not when the first message of that content type comes."""
    with pytest.raises(ConfigError, match="json codec cannot decode"):
        bind_header_decoder(ContentTypeCodec([MsgPackCodec(), JsonCodec()]), dict[bool, int])
