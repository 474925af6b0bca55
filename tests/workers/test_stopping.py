"""How a process is asked to stop."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from garrison.workers.stopping import Stopped, StopRequest


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_signal_asks_and_the_second_insists(sig: signal.Signals) -> None:
    insisted = asyncio.Event()
    stop = StopRequest(on_insist=insisted.set)

    with stop.listening():
        os.kill(os.getpid(), sig)
        await asyncio.wait_for(stop.wait(), 5)
        assert not insisted.is_set()
        os.kill(os.getpid(), sig)
        await asyncio.wait_for(insisted.wait(), 5)


async def test_an_ignored_hang_up_stays_ignored_and_an_ignored_interrupt_does_not() -> None:
    before = {sig: signal.getsignal(sig) for sig in (signal.SIGHUP, signal.SIGINT)}
    stop = StopRequest(on_insist=lambda: None)
    try:
        for sig in before:
            signal.signal(sig, signal.SIG_IGN)
        with stop.listening():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


async def test_work_that_ends_first_gives_its_answer() -> None:
    stop = StopRequest(on_insist=lambda: None)

    assert await stop.unless_asked(asyncio.sleep(0, "answer")) == "answer"


async def test_work_that_fails_gives_its_error() -> None:
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await StopRequest(on_insist=lambda: None).unless_asked(work())


async def test_work_is_cancelled_and_has_cleaned_up_when_asked() -> None:
    stop = StopRequest(on_insist=lambda: None)
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            stop.ask()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    with pytest.raises(Stopped):
        await stop.unless_asked(work())

    assert cleaned
