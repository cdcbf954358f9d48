"""Silence is noticed while a reader waits, and one timer serves a whole stream."""

import asyncio

import pytest

from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.request_stream import RequestStream, SilenceTimer
from livescale.shared.messages.requests import Tokens
from livescale.shared.simulation.virtual_time import run


def test_every_so_many_seconds_of_waiting_in_vain_are_told() -> None:
    assert run(heard_at(waits=[(0.5, 4.0)])) == [1.5, 2.5, 3.5]


def test_a_reader_that_does_not_wait_is_told_nothing() -> None:
    assert run(heard_at(waits=[])) == []


def test_whatever_comes_in_time_starts_the_count_anew() -> None:
    assert run(heard_at(waits=[(0.0, 0.9), (0.9, 1.8), (1.8, 3.0)])) == [2.8]


async def heard_at(waits: list[tuple[float, float]]) -> list[float]:
    """Return the times at which silence was reported, in a stream whose reader waits from and until these times."""
    loop = asyncio.get_running_loop()
    begun, told = loop.time(), list[float]()
    silence = SilenceTimer(1.0, lambda: told.append(round(loop.time() - begun, 3)))
    for start, stop in waits:
        await asyncio.sleep(begun + start - loop.time())
        silence.begin()
        await asyncio.sleep(begun + stop - loop.time())
        silence.end()
    await asyncio.sleep(begun + 6.0 - loop.time())
    silence.close()
    return told


async def test_events_come_in_order_and_none_is_lost_with_a_reader_that_is_cancelled() -> None:
    stream = RequestStream("r", 0, limit=8)
    try:
        reading = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        stream.accept(Tokens(request_id="r", index=0, token_ids=[5]))
        stream.accept(Tokens(request_id="r", index=1, token_ids=[6]))
        reading.cancel()  # it was woken already
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert [await stream.next(), await stream.next()] == [Fresh((5,)), Fresh((6,))]
        late = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        stream.accept(Tokens(request_id="r", index=2, token_ids=[7]))
        assert await late == Fresh((7,))
    finally:
        stream.close()
