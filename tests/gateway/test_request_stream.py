"""Silence is noticed while a reader waits, and one timer serves a whole stream."""

import asyncio

from livescale.services.gateway.request_stream import SilenceTimer
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
