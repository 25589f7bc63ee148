"""What crosses the border between the core and a transport: bytes, a name, headers, a key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    import asyncio
    import re

    from ruststream_core.errors import SettleError
    from ruststream_core.settlement import Verdict

__all__ = ["NO_HEADERS", "Delivery", "HeaderPairs", "Headers", "Outgoing", "Template"]

HeaderPairs: TypeAlias = Iterable[tuple[str, str | bytes]]


class Headers(Mapping[str, str]):
    """Header fields in the order of the wire. Immutable.

    Names keep their case and are looked up without regard to it. A name may occur more than once: the mapping
    shows the first, `get_all` shows all, `len` counts distinct names. A value is text or bytes; as text, bytes
    that are not UTF-8 are shown with surrogate escapes, and `get_bytes` gives them as they came.
    """

    __slots__ = ("_index", "_pairs")

    def __init__(self, pairs: HeaderPairs | Mapping[str, str | bytes] = ()) -> None:
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        self._pairs: tuple[tuple[str, str | bytes], ...] = tuple(items)
        self._index: dict[str, list[str | bytes]] | None = None

    def _by_name(self) -> dict[str, list[str | bytes]]:
        index = self._index
        if index is None:
            index = self._index = {}
            for name, value in self._pairs:
                index.setdefault(name.lower(), []).append(value)
        return index

    def __getitem__(self, name: str) -> str:
        return _text(self._by_name()[name.lower()][0])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._pairs) and name.lower() in self._by_name()

    def __iter__(self) -> Iterator[str]:
        seen = set()
        for name, _ in self._pairs:
            if (folded := name.lower()) not in seen:
                seen.add(folded)
                yield name

    def __len__(self) -> int:
        return len(self._by_name()) if self._pairs else 0

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self._comparable() == other._comparable()
        return Mapping.__eq__(self, other)

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Headers({list(self.raw())!r})"

    def _comparable(self) -> list[tuple[str, bytes]]:
        return [(name.lower(), _bytes(value)) for name, value in self._pairs]

    def get_all(self, name: str) -> list[str]:
        """Every value of that name as text, in order; empty where there is none."""
        return [_text(value) for value in self._by_name().get(name.lower(), ())]

    def get_bytes(self, name: str) -> bytes:
        """The first value of that name as bytes.

        Raises:
            KeyError: no such header.
        """
        return _bytes(self._by_name()[name.lower()][0])

    def raw(self) -> tuple[tuple[str, str | bytes], ...]:
        """Every field as it was given: name and value, in order, repeated ones included."""
        return self._pairs

    def replaced(self, changes: Mapping[str, str | bytes]) -> Headers:
        """A copy in which each name of `changes` occurs once, with the value given there."""
        folded = {name.lower() for name in changes}
        kept = [pair for pair in self._pairs if pair[0].lower() not in folded]
        return Headers([*kept, *changes.items()])


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


NO_HEADERS: Final = Headers()


class Delivery:
    """One message in the hands of this process, from `receive` until it is settled or lost.

    A transport's class is built once per message, with slots: a plain class, or `class MyDelivery(msgspec.Struct,
    Delivery, gc=False)`, which is the cheapest record there is. Each attribute below is a field or a property;
    what costs time to read (headers, above all) is a property that reads when it is asked.
    """

    __slots__ = ()

    lost: SettleError | None
    """Set by the transport when the delivery is not ours any more. Never reset."""

    @property
    def payload(self) -> bytes:
        """The body, whole and unchanged; empty where the message has none."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The subject, topic, queue, stream key or channel that the message came on, as the broker gave it."""
        raise NotImplementedError

    @property
    def headers(self) -> Headers:
        """Header fields, in order, repeated ones included."""
        return NO_HEADERS

    @property
    def key(self) -> bytes | None:
        """What orders and partitions messages, where the transport has such a thing."""
        return None

    @property
    def lane(self) -> Hashable | None:
        """What `by_key` without a function keeps in order: the key, unless the transport knows better."""
        return self.key

    @property
    def attempt(self) -> int | None:
        """How often the broker has delivered it, this time included, from 1; None where it does not count."""
        return None

    @property
    def reply_to(self) -> str | None:
        """Where the sender waits for an answer, on the same connection."""
        return None

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """Decide the message. The runtime calls it exactly once per delivery; it never raises.

        Returns:
            None where the verdict was handed over, or a future where it is pending: shared by all deliveries of
            one statement or frame, resolved with None when decided. A failure is told by `Watch.lost`, never by
            the future. On a delivery that is lost it does nothing.
        """
        raise NotImplementedError

    def transport(self, field: str) -> object:
        """What `FromTransport("nats.stream_sequence")` reads.

        Raises:
            KeyError: the transport has no such field.
        """
        raise KeyError(field)


class Outgoing(msgspec.Struct, gc=False):
    """One message on its way out."""

    payload: bytes
    name: str
    headers: Headers = NO_HEADERS
    key: bytes | None = None
    options: Any = None
    """The transport's own `PublishOptions`, or None."""
    reply_to: str | None = None
    """Where an answer is expected; set by `RequestReply`, seldom by others."""


class Template:
    """A name with placeholders, `orders.{region}.placed`: one placeholder is one token between separators.

    Raises:
        ValueError: braces do not pair, a placeholder is no identifier, occurs twice, or is not a whole token.
    """

    __slots__ = ("_pattern", "fields", "separator", "text", "tokens")

    def __init__(self, text: str, separator: str = ".") -> None:
        self.text = text
        self.separator = separator
        self.tokens: tuple[str, ...] = tuple(text.split(separator))
        self.fields: tuple[str, ...] = tuple(token[1:-1] for token in self.tokens if _is_placeholder(token))
        self._pattern: re.Pattern[str] | None = None
        loose = [token for token in self.tokens if not _is_placeholder(token) and ("{" in token or "}" in token)]
        if loose or len(set(self.fields)) != len(self.fields):
            raise ValueError(
                f"{text!r}: a placeholder is a whole token such as {{name}} between {separator!r}, each name once"
            )

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def wildcard(self, one: str) -> str:
        """The name with each placeholder replaced by the transport's wildcard for one token."""
        return self.separator.join(one if _is_placeholder(token) else token for token in self.tokens)

    def fill(self, values: Mapping[str, object]) -> str:
        """The name with each placeholder filled in.

        Raises:
            KeyError: a placeholder has no value.
            ValueError: a value is empty, or would change the name's structure (separator, wildcard, white space).
        """
        return self.separator.join(
            self._value(values[token[1:-1]]) if _is_placeholder(token) else token for token in self.tokens
        )

    def _value(self, value: object) -> str:
        text = str(value)
        if not text or any(c in "*>#{}" or c == self.separator or c.isspace() for c in text):
            raise ValueError(f"{self.text!r}: {value!r} cannot stand for a placeholder")
        return text

    def match(self, name: str) -> dict[str, str] | None:
        """The placeholders' values in a name, or None where the name does not fit.

        `*` fits one token, a last `>` or `#` fits the rest.
        """
        if (pattern := self._pattern) is None:
            pattern = self._pattern = self._compile()
        found = pattern.fullmatch(name)
        return None if found is None else found.groupdict()

    def _compile(self) -> re.Pattern[str]:
        import re  # noqa: PLC0415  only routes with placeholders need it

        one = f"[^{re.escape(self.separator)}]+"
        parts = []
        for index, token in enumerate(self.tokens):
            if _is_placeholder(token):
                parts.append(f"(?P<{token[1:-1]}>{one})")
            elif token == "*":  # noqa: S105  a wildcard
                parts.append(one)
            elif token in (">", "#") and index == len(self.tokens) - 1:
                parts.append(".+")
            else:
                parts.append(re.escape(token))
        return re.compile(re.escape(self.separator).join(parts))


def _is_placeholder(token: str) -> bool:
    return len(token) > 2 and token[0] == "{" and token[-1] == "}" and token[1:-1].isidentifier()
