"""Which parameter is the payload, what is refused, and what the signature says to the rest of the wiring."""

from __future__ import annotations

import sys
import types
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Annotated, Any, Never, Protocol

import msgspec
import pytest

from ruststream_core.abc import Marker
from ruststream_core.errors import ConfigError
from ruststream_core.params import (
    Context,
    Depends,
    FromHeader,
    FromHeaders,
    FromPath,
    FromState,
    FromTransport,
    HandlerSpec,
    Message,
    Out,
    Publisher,
    Reply,
    Seeker,
    Transaction,
    inspect_handler,
)
from ruststream_core.settlement import Drop, Outcome, Retry
from ruststream_core.wire import Delivery, Headers


class Order(msgspec.Struct):
    id: int


class Receipt(msgspec.Struct):
    order_id: int


def spec(fn: Callable[..., Any], *, batch: bool = False) -> HandlerSpec:
    return inspect_handler(fn, batch=batch)


def refusal(fn: Any, *, batch: bool = False) -> str:
    """The text of the ConfigError with which the handler is refused."""
    with pytest.raises(ConfigError) as caught:
        inspect_handler(fn, batch=batch)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------- the payload


async def first(order: Order, ctx: Context, region: Annotated[str, FromPath]) -> None: ...


async def last(ctx: Context, region: Annotated[str, FromPath], order: Order) -> None: ...


async def keyword(ctx: Context, *, region: Annotated[str, FromPath], order: Order) -> None: ...


async def positional(order: Order, /, ctx: Context) -> None: ...


async def defaulted(ctx: Context, order: Order | None = None) -> None: ...


async def optional_context(order: Order, ctx: Context | None = None) -> None: ...


async def with_default_left(order: Order, limit: int = 3, step=1) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


@pytest.mark.parametrize(
    "fn", [first, last, keyword, positional, defaulted, optional_context, with_default_left], ids=lambda fn: fn.__name__
)
def test_payload_is_what_nothing_else_claims_wherever_it_stands(fn: Callable[..., Any]) -> None:
    """Injection by position instead of by type would feed the payload to another parameter."""
    assert spec(fn).payload.name == "order"


def test_payload_types_lose_their_message_and_list() -> None:
    """The codec is bound to the wrong type when the envelope stays in it."""

    async def one(m: Message[Order]) -> None: ...
    async def many(m: list[Order]) -> None: ...
    async def many_messages(m: list[Message[Order]]) -> None: ...
    async def sequence(m: Sequence[Order]) -> None: ...
    async def bare(m: Message) -> None: ...  # type: ignore[type-arg]
    async def constrained(m: Annotated[int, msgspec.Meta(gt=0)]) -> None: ...

    assert spec(one).payload_type is Order
    assert spec(one).wants_position
    assert spec(many).payload_type == list[Order]
    assert not spec(many).wants_position
    assert spec(many, batch=True).payload_type is Order
    assert spec(many_messages, batch=True).payload_type is Order
    assert spec(many_messages, batch=True).wants_position
    assert spec(sequence, batch=True).payload_type is Order
    assert spec(bare).payload_type is Any
    assert spec(constrained).payload_type == Annotated[int, msgspec.Meta(gt=0)]


def test_no_payload_is_refused() -> None:
    async def h(ctx: Context) -> None: ...
    async def nothing() -> None: ...

    assert "takes no payload" in refusal(h)
    assert "takes no payload" in refusal(nothing)


def test_two_payloads_are_refused_with_both_names_and_a_marker() -> None:
    async def h(order: Order, region: str) -> None: ...
    async def both_defaulted(order: Order | None = None, region: str = "") -> None: ...

    for fn in (h, both_defaulted):
        text = refusal(fn)
        assert "'order', 'region'" in text
        assert 'region: Annotated[str, FromHeader("x-region")]' in text


def test_unannotated_payload_is_refused() -> None:
    async def h(order) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    text = refusal(h)
    assert "'order'" in text
    assert "order: bytes" in text


def test_unbound_method_is_refused_as_such() -> None:
    class Handlers:
        async def placed(self, order: Order) -> None: ...

    text = refusal(Handlers.placed)
    assert "method without its object" in text
    assert "Router.of(instance)" in text


@pytest.mark.parametrize("kind", [Delivery, Headers, Reply[int], Retry, type("Mine", (Delivery,), {})])
def test_framework_types_as_payload_are_refused_with_what_to_take(kind: Any) -> None:
    """A decoder for them is built and then fails for every message."""

    async def h(x: Any) -> None: ...

    h.__annotations__["x"] = kind
    assert "is no payload" in refusal(h)


def test_variadic_parameters_are_refused() -> None:
    async def args(*orders: Order) -> None: ...
    async def kwargs(order: Order, **rest: Any) -> None: ...

    assert "*orders" in refusal(args)
    assert "functools.wraps" in refusal(args)
    assert "**rest" in refusal(kwargs)


def test_batch_takes_lists_only() -> None:
    async def h(order: Order) -> None: ...
    async def messages(orders: list[Message[Order]]) -> None: ...

    assert "list[T] or list[Message[T]]" in refusal(h, batch=True)
    assert "batch=Batch(...)" in refusal(messages)


# --------------------------------------------------------------------------------------------------- markers


def test_marker_as_default_shows_the_annotated_form() -> None:
    async def instance(order: Order, region: str = FromPath("r")) -> None: ...  # type: ignore[assignment]
    async def cls(order: Order, region: str = FromPath) -> None: ...  # type: ignore[assignment]
    async def dep(order: Order, db=Depends(first)) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001, B008

    assert "write region: Annotated[str, FromPath('r')]" in refusal(instance).replace("'str'", "str")
    assert "write region: Annotated[str, FromPath]" in refusal(cls).replace("'str'", "str")
    assert "write db: Annotated[T, Depends(first)]" in refusal(dep)


def foreign_marker(library: str, name: str) -> Any:
    return type(name, (), {"__module__": f"{library}.params"})()


@pytest.mark.parametrize(
    ("library", "name", "remedy"),
    [
        ("fastapi", "Depends", "use Depends(...)"),
        ("fastapi", "Path", "use FromPath"),
        ("taskiq_dependencies", "TaskiqDepends", "use Depends(...)"),
        ("faststream", "Context", "FromState"),
        ("dishka", "FromDishka", "a marker of ruststream_core"),
    ],
)
def test_foreign_markers_are_named_by_their_library(library: str, name: str, remedy: str) -> None:
    """Left alone, such a marker makes the parameter look like a second payload."""
    marker = foreign_marker(library, name)

    async def annotated(order: Order, x: int) -> None: ...
    async def default(order: Order, x: int = marker) -> None: ...

    annotated.__annotations__["x"] = Annotated[int, marker]
    for fn in (annotated, default):
        text = refusal(fn)
        assert f"{library}'s {name} is not ours" in text
        assert remedy in text


def test_foreign_markers_of_an_installed_framework_are_recognised() -> None:
    """The fakes above could drift away from what the library really does."""
    faststream = pytest.importorskip("faststream")

    async def h(order: Order, x: int) -> None: ...

    h.__annotations__["x"] = Annotated[int, faststream.Depends(lambda: 1)]
    assert "is not ours: use Depends(...)" in refusal(h)


def test_foreign_types_are_named() -> None:
    kind = type("NatsMessage", (), {"__module__": "faststream.nats"})

    async def h(x: Any) -> None: ...

    for hint in (kind, kind | None):
        h.__annotations__["x"] = hint
        assert "faststream's NatsMessage is not ours: use Message[bytes]" in refusal(h)


def test_marker_class_that_needs_an_argument_says_so() -> None:
    async def h(order: Order, x: Annotated[str, FromHeader]) -> None: ...

    assert "FromHeader(...)" in refusal(h)


def test_misplaced_and_repeated_markers_are_refused() -> None:
    async def inner(order: Order, x: Annotated[str, FromPath] | None) -> None: ...
    async def twice(order: Order, x: Annotated[str, FromPath, FromHeader("x")]) -> None: ...
    async def slot(order: Order, x: Annotated[str, Out("audit")]) -> None: ...

    assert "outermost" in refusal(inner)
    assert "2 markers" in refusal(twice)
    assert "gives a Publisher" in refusal(slot)


def test_subclasses_of_injected_types_are_refused() -> None:
    """They would get the plain object, and fail at the first attribute of their own."""

    class Running(Publisher): ...

    async def h(order: Order, running: Annotated[Running, "ours"]) -> None: ...

    h.__annotations__["running"] = Running
    assert "ask for Publisher" in refusal(h)


def test_types_behind_an_alias_statement_keep_their_marker() -> None:
    """`type DB = Annotated[...]` is how newer code names a dependency."""

    class TypeAliasType:  # the shape of what the statement creates, on a Python that has none
        def __init__(self, value: Any) -> None:
            self.__value__ = value

    async def h(order: Order, region: Any, limit: Any = 1) -> None: ...

    h.__annotations__["region"] = TypeAliasType(Annotated[str, FromPath])
    h.__annotations__["limit"] = Annotated[TypeAliasType(int), FromHeader("x-limit")]
    facts = spec(h)
    assert facts.path_fields == ("region",)
    assert facts.parameters[2].hint is int


# --------------------------------------------------------------------------------------------------- what it says


def tenant(region: Annotated[str, FromPath("where")], out: Annotated[Publisher, Out("log")]) -> str: ...  # type: ignore[empty-body]


async def everything(
    order: Message[Order],
    seeker: Seeker,
    region: Annotated[str, FromPath],
    other: Annotated[str, FromPath("region")],
    db: Annotated[str, Depends(tenant)],
    audit: Annotated[Publisher, Out("audit")],
    tx: Annotated[object, Transaction],
    state: Annotated[object, FromState],
) -> None: ...


def test_facts_for_the_wiring() -> None:
    """Start-up checks placeholders, slots and capabilities from these; factories count too."""
    facts = spec(everything)
    assert facts.path_fields == ("region", "where")
    assert facts.out_slots == ("audit", "log")
    assert facts.transactional
    assert facts.wants_seeker
    assert facts.wants_position
    assert facts.wants_state
    assert not facts.is_sync
    assert facts.name == "everything"
    plain = spec(first)
    assert not (plain.transactional or plain.wants_seeker or plain.wants_position or plain.wants_state)


RETURNS: list[tuple[Any, Any]] = [
    (None, None),
    (Receipt, Receipt),
    (Receipt | None, Receipt),
    (Receipt | Retry | None, Receipt),
    (Retry | None, None),
    (Outcome, None),
    (type[Retry], None),
    (type[Retry | Drop] | None, None),
    (Reply[Receipt], Receipt),
    (Reply[Receipt] | Receipt | None, Receipt),
    (Annotated[Reply[Receipt], "doc"], Receipt),
    (Receipt | Order, Receipt | Order),
    (list[Receipt], list[Receipt]),
    (Reply, Any),
    (Any, Any),
    (Never, None),
    (Awaitable[Receipt], Receipt),
    (Coroutine[Any, Any, Receipt | None], Receipt),
]


@pytest.mark.parametrize(("hint", "expected"), RETURNS, ids=[str(hint) for hint, _ in RETURNS])
def test_reply_type(hint: Any, expected: Any) -> None:
    async def h(order: Order) -> Any: ...

    h.__annotations__["return"] = hint
    assert spec(h).reply_type == expected
    assert spec(h).returns_nothing is (expected is None)


def test_silence_about_the_return_value_is_any() -> None:
    async def h(order: Order): ...  # type: ignore[no-untyped-def]  # noqa: ANN202

    assert spec(h).reply_type is Any
    assert not spec(h).returns_nothing


BATCH_RETURNS: list[tuple[Any, Any]] = [
    (None, None),
    (Outcome | None, None),
    (list[Outcome], None),
    (list[Outcome | None] | Retry, None),
    (list[Receipt | Outcome | None], Receipt),
    (list[Reply[Receipt]], Receipt),
    (Sequence[Receipt], Receipt),
    (tuple[Receipt, ...], Receipt),
    (list, Any),
    (Any, Any),
]


@pytest.mark.parametrize(("hint", "expected"), BATCH_RETURNS, ids=[str(hint) for hint, _ in BATCH_RETURNS])
def test_reply_type_of_a_batch(hint: Any, expected: Any) -> None:
    async def h(orders: list[Order]) -> Any: ...

    h.__annotations__["return"] = hint
    assert spec(h, batch=True).reply_type == expected


def test_batch_that_returns_one_value_is_refused() -> None:
    """One value for many messages has no meaning, and every batch would be retried."""

    async def h(orders: list[Order]) -> Receipt: ...  # type: ignore[empty-body]

    assert "a list with a value" in refusal(h, batch=True)


def by_context(ctx: Context) -> str: ...  # type: ignore[empty-body]


class Unknown(Marker): ...


@pytest.mark.parametrize(
    "hint",
    [
        Context,
        Annotated[str, FromPath],
        Annotated[str, FromHeader("x")],
        Annotated[Order, FromHeaders],
        Annotated[int, FromTransport("a.b")],
        Annotated[str, Unknown],
        Annotated[str, Depends(by_context)],
    ],
    ids=str,
)
def test_per_message_parameters_are_refused_in_batches(hint: Any) -> None:
    """A batch has many messages; the first one's header would silently stand for all."""

    async def h(orders: list[Order], x: Any) -> None: ...

    h.__annotations__["x"] = hint
    assert "belongs to one message" in refusal(h, batch=True)


# --------------------------------------------------------------------------------------------------- annotations


def test_local_types_are_found_through_the_scope() -> None:
    class Local(msgspec.Struct):
        id: int

    async def h(x: Local) -> Local: ...  # type: ignore[empty-body]

    assert inspect_handler(h, batch=False, scope=locals()).payload_type is Local
    with pytest.raises(ConfigError, match=r"parameter 'x'.*'Local'.*import Local at run time"):
        inspect_handler(h, batch=False)


def module(source: str, name: str, monkeypatch: pytest.MonkeyPatch, folder: Any) -> types.ModuleType:
    """A module from source, with a file behind it so that its source can be read."""
    path = folder / f"{name}.py"
    path.write_text(source)
    made = types.ModuleType(name)
    made.__file__ = str(path)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(source, str(path), "exec"), made.__dict__)
    return made


def test_error_names_the_import_that_type_checking_hides(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    source = (
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from shop.models import Order\n"
        "async def h(order: Order) -> None: ...\n"
    )
    made = module(source, "shop_handlers", monkeypatch, tmp_path)
    text = refusal(made.h)
    assert "parameter 'order' of handler 'h'" in text
    assert "move `from shop.models import Order` out of `if TYPE_CHECKING:`" in text


def test_return_annotation_is_named_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    source = "from __future__ import annotations\nasync def h(order: int) -> Receipt: ...\n"
    made = module(source, "shop_returns", monkeypatch, tmp_path)
    assert "the return value of handler 'h'" in refusal(made.h)


def test_module_of_the_handler_wins_over_the_frame_that_mounts_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """`subscriber("a")(other.handler)`: a name that both modules have must be the handler's."""
    source = "from __future__ import annotations\nclass Order: ...\nasync def h(order: Order) -> None: ...\n"
    made = module(source, "shop_other", monkeypatch, tmp_path)
    assert inspect_handler(made.h, batch=False, scope={"Order": Order}).payload_type is made.Order


def test_class_body_names_are_found() -> None:
    class Handlers:
        class Body(msgspec.Struct):
            id: int

        async def placed(self, body: Body) -> None: ...

        names = dict(locals())

    assert inspect_handler(Handlers().placed, batch=False, scope=Handlers.names).payload_type is Handlers.Body


def test_annotations_that_are_no_types_are_refused() -> None:
    async def h(order: Any) -> None: ...

    for wrong in ("1 +", "not_closed[", "Order[int]"):
        h.__annotations__["order"] = wrong
        assert "is no annotation" in refusal(h)


def test_quoted_names_inside_an_annotation_are_resolved() -> None:
    async def h(orders: Any) -> None: ...

    h.__annotations__["orders"] = list["Order"]
    assert spec(h).payload_type == list[Order]


def test_protocols_may_be_asked_for_as_state() -> None:
    class HasPool(Protocol):
        pool: object

    async def h(order: Order, state: Annotated[HasPool, FromState]) -> None: ...

    assert inspect_handler(h, batch=False, scope=locals()).wants_state
