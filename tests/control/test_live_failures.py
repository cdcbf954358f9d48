"""The control plane and the bus fail while an instance is live: real streams lose nothing, and all comes to rest."""

import asyncio
from collections.abc import Callable

import pytest

from livescale.services.router.main import Router
from livescale.shared.messages.registry import Register
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import REGISTER
from tests.control.control_plane import spec
from tests.control.disturbed_plane import RESTART_SECONDS, DisturbedPlane
from tests.control.fake_worker import FakeWorker
from tests.control.fakes import SLOTS

SERVICES = ("registry-0", "router-0", "planner-0", "monitor-0", "gateway-0", "host-0")
WORKERS = ("worker-0", "worker-1")
BLOCK_SECONDS = 1.0
OUTAGE_SECONDS = 2.0
TOKENS = (120, 60)  # of requests that fill the source until the target is live, and of those that wait for either


def lose_moves(disturbed: DisturbedPlane) -> None:
    """Lose all messages that say which worker has taken a request over."""
    disturbed.broker.delays = lambda subject: () if subject.endswith(".moved") else (0.0,)


def kill_the_router(disturbed: DisturbedPlane) -> None:
    """Kill the router in the middle of hand-offs that it would have heard of; its successor does not hear of them
    either."""
    lose_moves(disturbed)
    disturbed.kill("router-0")
    asyncio.get_running_loop().call_later(RESTART_SECONDS / 2, disturbed.calm)


def lose_moves_and(victim: str) -> Callable[[DisturbedPlane], None]:
    """Kill the worker that took requests over, or the one that gave them away; the router does not know which has
    them."""

    def act(disturbed: DisturbedPlane) -> None:
        lose_moves(disturbed)
        asyncio.get_running_loop().call_later(0.5, disturbed.kill, victim)

    return act


HAPPENINGS: dict[str, Callable[[DisturbedPlane], None]] = {
    "the bus is away": lambda disturbed: disturbed.outage(OUTAGE_SECONDS),
    "the registry dies": lambda disturbed: disturbed.kill("registry-0"),
    "the router dies in mid hand-off": kill_the_router,
    "the planner dies": lambda disturbed: disturbed.kill("planner-0"),
    "no word of moves": lose_moves,
    "no word of moves, and the source dies": lose_moves_and("worker-0"),
    "no word of moves, and the target dies": lose_moves_and("worker-1"),
    "the source is cut off": lambda disturbed: disturbed.part("worker-0", OUTAGE_SECONDS),
    "the target is cut off": lambda disturbed: disturbed.part("worker-1", OUTAGE_SECONDS),
    "the source is frozen": lambda disturbed: disturbed.freeze("worker-0", 2 * OUTAGE_SECONDS),
    "the target is frozen": lambda disturbed: disturbed.freeze("worker-1", 2 * OUTAGE_SECONDS),
}


def worker(disturbed: DisturbedPlane, name: str) -> FakeWorker:
    process = disturbed.running[name]
    assert isinstance(process, FakeWorker)
    return process


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not holds():  # noqa: ASYNC110 what is waited for is others' to know
            await asyncio.sleep(0.01)


async def play(happening: Callable[[DisturbedPlane], None], after: float) -> None:
    """One instance is full, another takes what is too much and gives it back, and then it happens."""
    disturbed = DisturbedPlane(7, "zigzag")
    try:
        disturbed.start(*SERVICES, *WORKERS)
        await asyncio.sleep(1.0)
        await disturbed.operator.call(REGISTER, Register(spec=spec(min_instances=1, max_instances=2)), timeout=5.0)
        await asyncio.sleep(1.0)
        source, target = (worker(disturbed, name) for name in WORKERS)
        assert source.state == "serving"
        disturbed.hurt(target.id, block_seconds=BLOCK_SECONDS)
        for tokens in TOKENS:
            disturbed.ask("gateway-0", "m", tokens, count=SLOTS)
        disturbed.scale("m", 2)
        await until(lambda: bool(source.engine.taken))
        assert target.state == "live"
        await asyncio.sleep(after)
        happening(disturbed)
        await until(lambda: all(ask.outcome for ask in disturbed.asks))
        disturbed.calm()
        await asyncio.sleep(3.0)
        left = [id for name in WORKERS for id in worker(disturbed, name).engine.running]
        router = disturbed.running["router-0"]
        assert isinstance(router, Router)
        assert router.office is not None
        left += [load.model for load in router.office.queues() if load.running or load.waiting_requests]
    finally:
        await disturbed.end()
    assert disturbed.trouble == []
    for ask in disturbed.asks:
        assert (ask.outcome, ask.tokens) == ("complete", list(range(1, ask.max_tokens + 1)))
    assert left == []


@pytest.mark.parametrize("what", HAPPENINGS)
@pytest.mark.parametrize("after", [0.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_whatever_fails_while_an_instance_is_live_streams_are_whole(what: str, after: float) -> None:
    virtual_time.run(play(HAPPENINGS[what], after), limit_seconds=500)
