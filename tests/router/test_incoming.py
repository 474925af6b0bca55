"""A request's body: what is kept of it, what may be sent again, and who notices that it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from garrison.router.incoming import Budget, ClientGone, Incoming
from tests.router.stage import until


class Client:
    """Sends pieces as they are asked for."""

    def __init__(self, *pieces: bytes, ends: bool = True) -> None:
        self.taken = 0
        self._messages = asyncio.Queue[Message]()
        self.send(*pieces, ends=ends)

    def send(self, *pieces: bytes, ends: bool = True) -> None:
        for number, piece in enumerate(pieces, 1):
            more = number < len(pieces) or not ends
            message = {"type": "http.request", "body": piece, "more_body": more}
            self._messages.put_nowait(message)

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})

    async def receive(self) -> Message:
        message = await self._messages.get()
        self.taken += 1
        return message


def of(client: Client, *, keep: int = 100, total: int = 1000, stall: float = 60) -> Incoming:
    return Incoming(client.receive, keep=keep, budget=Budget(total), stall=stall)


async def whole(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_a_short_body_is_complete_at_once_and_can_be_read_again() -> None:
    async with of(Client(b"ab", b"cd")) as incoming:
        await until(lambda: incoming.complete is not None)
        first = await whole(incoming.pieces())
        incoming.rewind()
        second = await whole(incoming.pieces())

    assert (first, second) == (b"abcd", b"abcd")


async def test_nothing_more_is_read_than_can_be_kept_while_nobody_takes_it() -> None:
    client = Client(*[b"x" * 60] * 10)
    async with of(client) as incoming:
        await until(lambda: client.taken == 2)
        await asyncio.sleep(0.01)
        taken, kept = client.taken, incoming.whole
        body = await whole(incoming.pieces())

    assert (taken, kept) == (2, True)
    assert body == b"x" * 600


async def test_what_was_kept_is_still_there_after_a_reader_that_failed_half_way() -> None:
    pieces = [b"%02d" % number for number in range(90)]
    client = Client(*pieces[:10], ends=False)
    async with of(client) as incoming:
        failed = incoming.pieces()
        begun = [await anext(failed) for _ in range(10)]
        incoming.rewind()
        # Nobody reads: what comes now must not push out what only the one that failed had.
        client.send(*pieces[10:])
        await until(lambda: client.taken == 50)
        await asyncio.sleep(0.01)
        again = await whole(incoming.pieces())
        with pytest.raises(RuntimeError):
            await anext(failed)

    assert begun == pieces[:10]
    assert again == b"".join(pieces)


async def test_a_body_that_outgrew_what_is_kept_cannot_be_sent_again() -> None:
    async with of(Client(*[b"x" * 60] * 10)) as incoming:
        await whole(incoming.pieces())

        assert not incoming.whole
        assert incoming.complete is None


async def test_a_body_begins_although_others_use_up_the_budget() -> None:
    budget = Budget(100)
    budget.used = 100
    client = Client(b"abc", b"def")
    async with Incoming(client.receive, keep=100, budget=budget, stall=60) as incoming:
        await asyncio.wait_for(incoming.begin(), 10)
        body = await whole(incoming.pieces())

    assert body == b"abcdef"
    assert budget.used == 100


@pytest.mark.parametrize("how", ["ends", "fails", "leaves"])
async def test_the_budget_gets_everything_back(how: str) -> None:
    budget, client = Budget(1000), Client(b"abc", b"def", ends=False)

    async def serve() -> None:
        async with Incoming(client.receive, keep=100, budget=budget, stall=60):
            await until(lambda: budget.used == 6)
            if how == "fails":
                raise ZeroDivisionError
            if how == "leaves":
                client.leave()
                await asyncio.Event().wait()

    (outcome,) = await asyncio.gather(serve(), return_exceptions=True)

    assert {"ends": type(None), "fails": ZeroDivisionError, "leaves": ClientGone}[how] is type(
        outcome
    )
    assert budget.used == 0


async def test_a_client_that_stops_in_the_middle_of_its_body_counts_as_gone() -> None:
    with pytest.raises(ClientGone):
        async with of(Client(b"half", ends=False), stall=0.01) as incoming:
            await whole(incoming.pieces())


async def test_a_client_that_has_sent_all_may_wait_as_long_as_it_likes() -> None:
    async with of(Client(b"all"), stall=0.01) as incoming:
        await until(lambda: incoming.complete is not None)
        await asyncio.sleep(0.03)

        assert incoming.complete == b"all"


async def test_a_cancellation_from_outside_stays_one_although_the_client_left_too() -> None:
    client, begun = Client(b"all"), asyncio.Event()

    async def serve() -> None:
        async with of(client):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await begun.wait()
    await until(lambda: client.taken == 1)
    client.leave()
    # The body's reader runs in this turn of the loop, before this task goes on.
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
