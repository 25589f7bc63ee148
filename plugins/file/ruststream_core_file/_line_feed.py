"""What one subscription of standard input has not taken yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ruststream_core_file._convert import FileDelivery
from ruststream_core_file._lines import BROADCAST
from ruststream_core_file._receiving import Receiving
from ruststream_core_file.config import FileStream, keys_of

__all__ = ["BACKLOG", "LineFeed", "LineSubscription"]

BACKLOG: Final = 10_000
"""Messages that one subscription holds unread before standard input is left alone, and that are kept at the start for
a subscription that does not exist yet."""


class LineSubscription(Receiving):
    """Receives lines."""

    def begin(self, feed: LineFeed) -> None:
        """Receive from there."""
        self._feed = feed
        self._tell("receiving")


class LineFeed:
    """A `Feed` that lines are put into.

    Args:
        source: whose lines are wanted.
        news: called when something came.
        room: called when something was taken.
        leave: called when nothing more is wanted.
    """

    error: BaseException | None = None

    def __init__(
        self,
        source: FileStream,
        news: Callable[[], None],
        room: Callable[[], None],
        leave: Callable[[LineFeed], None],
    ) -> None:
        self.ended = False
        self._keys = keys_of(source)
        self._messages: list[FileDelivery] = []
        self._news = news
        self._room = room
        self._leave = leave
        self._left = False

    def wants(self, key: str) -> bool:
        """Whether the source takes that key."""
        if self._left:
            return False
        if self._keys is None or key == BROADCAST:
            return True
        return self._keys(key) if callable(self._keys) else key in self._keys

    def put(self, messages: list[FileDelivery]) -> None:
        """More."""
        if messages:
            self._messages += messages
            self._news()

    @property
    def buffered(self) -> int:
        """See `Feed`."""
        return len(self._messages)

    @property
    def full(self) -> bool:
        """Whether nothing more should be read for now."""
        return len(self._messages) >= BACKLOG

    def pop(self) -> tuple[int, list[FileDelivery]] | None:
        """See `Feed`."""
        if not self._messages:
            return None
        taken, self._messages = self._messages, []
        self._room()
        return 0, taken

    def finish(self) -> None:
        """Nothing more comes."""
        self.ended = True
        self._news()

    def stop(self) -> None:
        """See `Feed`. Others go on reading."""
        if not self._left:
            self._left = True
            self._leave(self)
            self._messages = []
            self._room()

    async def aclose(self) -> None:
        """See `Feed`."""
        self.stop()
