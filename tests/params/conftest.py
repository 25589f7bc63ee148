"""What the tests of parameters share: a delivery by hand and a handler bound in one call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from ruststream_core.params import Bound, Services, inspect_handler
from ruststream_core.wire import NO_HEADERS, Delivery, Headers, Template


class GivenDelivery(msgspec.Struct, Delivery):
    """A delivery with chosen fields."""

    payload: bytes = b"1"
    name: str = "orders.eu.placed"
    headers: Headers = NO_HEADERS
    key: bytes | None = None
    attempt: int | None = None
    fields: Mapping[str, object] = {}
    lost: Any = None

    def transport(self, field: str) -> object:
        return self.fields[field]


def _delivery(payload: object = 1, **fields: Any) -> GivenDelivery:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    if isinstance(headers := fields.get("headers", NO_HEADERS), dict | list):
        fields["headers"] = Headers(headers)
    return GivenDelivery(body, **fields)


def _bound(fn: Callable[..., Any], *, batch: bool = False, path: str = "", **services: Any) -> Bound:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    spec = inspect_handler(fn, batch=batch, scope=frame.f_back.f_locals)
    if path:
        services["template"] = Template(path)
    services.setdefault("route", "confirm")
    services.setdefault("decode", msgspec.json.Decoder(spec.payload_type).decode)
    return spec.bind(Services(**services))


@pytest.fixture
def delivery() -> Callable[..., GivenDelivery]:
    """Builds a delivery: `delivery({"id": 1}, headers={"x-tenant": "a"})`."""
    return _delivery


@pytest.fixture
def bound() -> Callable[..., Bound]:
    """Binds a handler, with the caller's local names in scope: `bound(handler, path="orders.{region}.placed")`."""
    return _bound
