"""The pieces that transports share, each at its limits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_core.errors import Closed
from ruststream_core.kit import Gather, Inbox, Keeper, LoopClock, VirtualClock, Watermark, Window, backoff


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --------------------------------------------------------------------------------------------------------- backoff


def test_waits_grow_to_their_most_and_stay_spread_over_the_upper_half() -> None:
    waits = backoff(1, factor=2, most=10)
    for full in (1, 2, 4, 8, 10, 10, 10):
        assert full / 2 <= next(waits) <= full


# ---------------------------------------------------------------------------------------------------------- window


async def test_a_full_window_waits_and_goes_on_when_one_is_given_back() -> None:
    window = Window(3)
    assert await window.room(10, lambda: False) == 3
    window.take(3)
    waiting = asyncio.ensure_future(window.room(10, lambda: False))
    await turns()
    assert not waiting.done()
    window.give()
    assert await waiting == 1


async def test_an_ended_window_gives_no_room_once_it_is_woken() -> None:
    window = Window(1)
    window.take(1)
    ended = False
    waiting = [asyncio.ensure_future(window.room(1, lambda: ended)) for _ in range(3)]
    await turns()
    ended = True
    window.wake()
    assert await asyncio.gather(*waiting) == [0, 0, 0]


async def test_a_waiter_that_was_cancelled_does_not_swallow_the_room() -> None:
    window = Window(1)
    window.take(1)
    first = asyncio.ensure_future(window.room(1, lambda: False))
    second = asyncio.ensure_future(window.room(1, lambda: False))
    await turns()
    first.cancel()
    await turns()
    window.give()
    assert await second == 1


# ----------------------------------------------------------------------------------------------------------- inbox


async def test_items_come_in_order_and_at_most_so_many() -> None:
    inbox: Inbox[int] = Inbox(10)
    for n in range(7):
        assert inbox.put(n)
    assert await inbox.get(3) == [0, 1, 2]
    assert await inbox.get(100) == [3, 4, 5, 6]


async def test_a_full_inbox_refuses_and_counts() -> None:
    inbox: Inbox[int] = Inbox(2)
    assert [inbox.put(n) for n in range(4)] == [True, True, False, False]
    assert (inbox.refused, len(inbox)) == (2, 2)


async def test_get_waits_for_the_first_and_lingers_for_more() -> None:
    inbox: Inbox[int] = Inbox(10)
    getting = asyncio.ensure_future(inbox.get(3, 3600))
    await turns()
    inbox.put(1)
    await turns()
    assert not getting.done()
    inbox.put(2)
    inbox.put(3)
    assert await getting == [1, 2, 3], "full: the rest of the lingering is saved"
    inbox.put(4)
    assert await inbox.get(3, 0.01) == [4], "time is over: what is there"


async def test_get_yields_to_the_loop_even_when_there_is_something() -> None:
    inbox: Inbox[int] = Inbox(10)
    inbox.put(1)
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "other")
    await inbox.get(1)
    assert ran == ["other"]


async def test_stop_gives_what_is_left_and_then_nothing() -> None:
    inbox: Inbox[int] = Inbox(10)
    inbox.put(1)
    inbox.stop()
    assert not inbox.put(2)
    assert await inbox.get(5, 3600) == [1]
    assert await inbox.get(5) == []
    assert inbox.ended


async def test_stop_and_fail_wake_who_waits() -> None:
    inbox: Inbox[int] = Inbox(10)
    getting = asyncio.ensure_future(inbox.get(1))
    await turns()
    inbox.stop()
    assert await getting == []
    other: Inbox[int] = Inbox(10)
    other.put(1)
    other.fail(OSError("gone"))
    assert await other.get(1) == [1], "what came before the failure is handed out first"
    with pytest.raises(OSError, match="gone"):
        await other.get(1)


async def test_two_callers_at_once_are_refused() -> None:
    inbox: Inbox[int] = Inbox(10)
    getting = asyncio.ensure_future(inbox.get(1))
    await turns()
    with pytest.raises(RuntimeError, match="one caller"):
        await inbox.get(1)
    inbox.put(1)
    assert await getting == [1]


async def test_a_get_that_is_cancelled_loses_nothing() -> None:
    inbox: Inbox[int] = Inbox(10)
    for linger in (0.0, 3600.0):
        getting = asyncio.ensure_future(inbox.get(5, linger))
        await turns()
        inbox.put(1)
        getting.cancel()
        await asyncio.wait([getting])
        assert await inbox.get(5) == [1]


async def test_clear_takes_what_was_never_handed_out() -> None:
    inbox: Inbox[int] = Inbox(10)
    inbox.put(1)
    inbox.put(2)
    assert inbox.clear() == [1, 2]
    assert len(inbox) == 0


# ------------------------------------------------------------------------------------------------------- watermark


@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.randoms(use_true_random=False))
def test_the_watermark_is_the_longest_finished_prefix(positions: list[int], order: random.Random) -> None:
    positions.sort()
    watermark: Watermark[int] = Watermark(-1)
    marks = [watermark.open(position) for position in positions]
    done: set[int] = set()
    shuffled = list(zip(positions, marks, strict=True))
    order.shuffle(shuffled)
    for position, mark in shuffled:
        before = watermark.position
        done.add(position)
        moved = watermark.close(mark)
        expected = -1
        for known in positions:
            if known not in done:
                break
            expected = known
        assert watermark.position == expected
        assert moved == (expected != before)
    assert len(watermark) == 0


def test_a_mark_of_before_a_reset_changes_nothing() -> None:
    watermark: Watermark[int] = Watermark(0)
    old = watermark.open(1)
    watermark.reset(10)
    new = watermark.open(11)
    assert not watermark.close(old)
    assert watermark.position == 10
    assert watermark.close(new)
    assert watermark.position == 11
    assert not watermark.close(new), "closing twice moves nothing"


# ---------------------------------------------------------------------------------------------------------- clocks


def test_virtual_timers_run_in_order_of_their_time_and_then_of_their_making() -> None:
    clock = VirtualClock()
    ran: list[tuple[float, str]] = []
    for delay, name in ((3, "c"), (1, "a"), (1, "b"), (9, "late")):
        clock.call_later(delay, lambda name=name: ran.append((clock.time(), name)))  # type: ignore[misc]
    clock.call_later(2, lambda: clock.call_later(0.5, lambda: ran.append((clock.time(), "nested"))))
    assert clock.waiting == 5
    while clock.step(5):
        pass
    assert ran == [(1, "a"), (1, "b"), (2.5, "nested"), (3, "c")]
    assert (clock.time(), clock.waiting) == (5, 1)


def test_a_cancelled_timer_never_runs_and_does_not_count() -> None:
    clock = VirtualClock()
    ran: list[int] = []
    cancel = clock.call_later(1, lambda: ran.append(1))
    cancel()
    cancel()
    assert clock.waiting == 0
    assert not clock.step(10)
    assert ran == []


async def test_the_loops_clock_runs_and_cancels() -> None:
    clock = LoopClock()
    came = asyncio.Event()
    ran: list[int] = []
    before = clock.time()
    clock.call_later(0, lambda: ran.append(1))()
    clock.call_later(0.001, came.set)
    await came.wait()
    assert ran == []
    assert clock.time() >= before


# ---------------------------------------------------------------------------------------------------------- keeper


async def test_items_are_renewed_until_they_are_discarded() -> None:
    renewed: list[list[str]] = []
    twice = asyncio.Event()

    async def renew(items: Sequence[str]) -> None:
        renewed.append(list(items))
        if sum("a" in batch for batch in renewed) == 2:
            twice.set()

    keeper: Keeper[str] = Keeper(0.02, renew)
    keeper.add("a")
    keeper.add("b")
    keeper.discard("b")
    await twice.wait()
    assert all("b" not in batch for batch in renewed)
    await keeper.aclose()
    assert len(keeper) == 0


async def test_a_renewal_that_fails_is_tried_again_before_the_life_is_over() -> None:
    tries = 0
    again = asyncio.Event()

    async def renew(items: Sequence[str]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("not now")
        again.set()

    keeper: Keeper[str] = Keeper(0.02, renew)
    keeper.add("a")
    await again.wait()
    assert keeper.failures == 1
    await keeper.aclose()


async def test_an_idle_keeper_wakes_up_for_the_next_item() -> None:
    renewed = asyncio.Event()

    async def renew(items: Sequence[str]) -> None:
        renewed.set()

    keeper: Keeper[str] = Keeper(0.01, renew)
    keeper.add("a")
    keeper.discard("a")
    keeper.add("b")
    await renewed.wait()
    await keeper.aclose()
    await keeper.aclose()


async def test_what_is_discarded_while_it_is_renewed_stays_discarded() -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def renew(items: Sequence[str]) -> None:
        inside.set()
        await go_on.wait()

    keeper: Keeper[str] = Keeper(0.01, renew)
    keeper.add("a")
    await inside.wait()
    keeper.discard("a")
    go_on.set()
    await turns()
    assert len(keeper) == 0
    await keeper.aclose()


# ---------------------------------------------------------------------------------------------------------- gather


async def test_what_comes_in_one_turn_is_one_statement_and_shares_a_future() -> None:
    statements: list[list[int]] = []

    async def flush(items: Sequence[int]) -> None:
        statements.append(list(items))
        await asyncio.sleep(0)

    gather = Gather(flush)
    futures = [gather.add(n) for n in range(5)]
    assert len({id(future) for future in futures}) == 1
    await futures[0]
    assert statements == [[0, 1, 2, 3, 4]]


async def test_what_comes_while_one_is_under_way_forms_the_next() -> None:
    statements: list[list[int]] = []
    gate = asyncio.Event()

    async def flush(items: Sequence[int]) -> None:
        statements.append(list(items))
        await gate.wait()

    gather = Gather(flush)
    first = gather.add(1)
    await turns()
    second = gather.add(2)
    third = gather.add(3)
    assert second is third is not first
    gate.set()
    await gather.drain()
    assert statements == [[1], [2, 3]]
    assert first.done()
    assert second.done()


async def test_a_large_group_is_split_and_its_future_ends_with_the_last_part() -> None:
    statements: list[int] = []

    async def flush(items: Sequence[int]) -> None:
        statements.append(len(items))

    gather = Gather(flush, limit=4)
    future: asyncio.Future[None] | None = None
    for n in range(10):
        future = gather.add(n)
    assert future is not None
    await future
    assert statements == [4, 4, 2]


async def test_a_flush_that_fails_holds_nobody_and_is_kept() -> None:
    async def flush(items: Sequence[int]) -> None:
        raise OSError("gone")

    gather = Gather(flush)
    await gather.add(1)
    assert isinstance(gather.error, OSError)


async def test_close_flushes_and_refuses_more() -> None:
    statements: list[int] = []

    async def flush(items: Sequence[int]) -> None:
        statements.extend(items)

    gather = Gather(flush)
    added = gather.add(1)
    await gather.aclose()
    assert statements == [1]
    assert added.done()
    with pytest.raises(Closed):
        await gather.add(2)


async def test_a_future_that_its_reader_cancelled_does_not_stop_the_others() -> None:
    statements: list[int] = []

    async def flush(items: Sequence[int]) -> None:
        statements.extend(items)

    gather = Gather(flush)
    gather.add(1).cancel()
    await turns()
    await gather.add(2)
    assert statements == [1, 2]
