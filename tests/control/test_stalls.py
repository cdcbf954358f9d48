"""Processes that are stopped and go on, all together or one by one, at every step of what they do together.

The streams are whole, and the scale that was under way is carried through.
"""

import asyncio
from collections.abc import Callable

import pytest

from livescale.shared.messages.registry import Register
from livescale.shared.runtime.settings import LiveName
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import REGISTER
from tests.control.control_plane import spec
from tests.control.disturbed_plane import DisturbedPlane
from tests.control.fake_worker import FakeWorker

WORKERS = ("worker-0", "worker-1", "worker-2")
SERVICES = ("registry-0", "router-0", "planner-0", "monitor-0", "host-0", "gateway-0")
EVERYBODY = (*SERVICES, *WORKERS)
BLOCK_SECONDS = 0.4
LIVES: tuple[LiveName, ...] = ("off", "zigzag", "pipeline")
# From the command to scale to its end; one of them is enough for every day.
MOMENTS = [0.85, *(pytest.param(after, marks=pytest.mark.slow) for after in (0.0, 0.05, 0.3, 0.45, 1.25, 1.6, 1.7))]
SHORT_SECONDS, LONG_SECONDS = 2.0, 6.0  # less than a lease, and more


def workers(disturbed: DisturbedPlane) -> list[FakeWorker]:
    return [actor for actor in disturbed.running.values() if isinstance(actor, FakeWorker)]


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 what is waited for is others' to know
            await asyncio.sleep(0.05)


def rest(dies: str) -> tuple[str, ...]:
    """Return the states that workers may end in."""
    return ("serving", "spare") if dies in WORKERS else ("serving",)


async def scaled_meanwhile(
    live: LiveName, after: float, happening: Callable[[DisturbedPlane], None], seed: int = 1, *, dies: str = ""
) -> DisturbedPlane:
    """Send requests, scale from one instance to three, and let something happen meanwhile. A process that `dies` is
    only expected to return."""
    disturbed = DisturbedPlane(seed, live)
    try:
        disturbed.start(*EVERYBODY)
        await asyncio.sleep(1.0)
        made = spec(min_instances=1, max_instances=3, downscale_delay_s=60.0)
        await disturbed.operator.call(REGISTER, Register(spec=made), timeout=5.0)
        await until(lambda: sum(one.state == "serving" for one in workers(disturbed)) == 1)
        for worker in WORKERS:
            disturbed.hurt(worker, block_seconds=BLOCK_SECONDS)
        disturbed.ask("gateway-0", "m", 150, count=6)
        disturbed.scale("m", 3)
        await asyncio.sleep(after)
        happening(disturbed)
        await until(lambda: all(ask.outcome for ask in disturbed.asks))
        await until(lambda: all(one.state in rest(dies) for one in workers(disturbed)))
    finally:
        await disturbed.end()
    assert disturbed.trouble == []
    for ask in disturbed.asks:
        assert (ask.outcome, ask.refusals, ask.tokens) == ("complete", 0, list(range(1, ask.max_tokens + 1)))
    return disturbed


@pytest.mark.parametrize("live", LIVES)
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("seconds", [5.0, *(pytest.param(one, marks=pytest.mark.slow) for one in (0.5, 2.0))])
def test_a_stall_of_everybody_costs_nobody_a_request_a_scale_an_office_or_a_lease(
    live: LiveName, after: float, seconds: float
) -> None:
    disturbed = virtual_time.run(
        scaled_meanwhile(live, after, lambda disturbed: disturbed.stall(seconds)), limit_seconds=300
    )
    assert disturbed.leases == {"alive": len(EVERYBODY)}
    assert disturbed.ended == ["done"] * len(disturbed.ended)
    assert max(disturbed.starts.values()) == 1


@pytest.mark.parametrize(
    "live", ["zigzag", *(pytest.param(one, marks=pytest.mark.slow) for one in ("off", "pipeline"))]
)
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("name", EVERYBODY)
def test_a_process_that_is_stopped_for_less_than_a_lease_costs_nobody_a_request_or_a_scale(
    live: LiveName, after: float, name: str
) -> None:
    disturbed = virtual_time.run(
        scaled_meanwhile(live, after, lambda disturbed: disturbed.freeze(name, SHORT_SECONDS)), limit_seconds=300
    )
    assert disturbed.leases.get("dead", 0) == 0
    assert disturbed.ended == ["done"] * len(disturbed.ended)
    assert max(disturbed.starts.values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("live", LIVES)
@pytest.mark.parametrize("name", EVERYBODY)
@pytest.mark.parametrize("after", [0.3, 0.85])
def test_a_process_that_is_stopped_for_longer_is_dead_and_joins_again_without_a_restart(
    live: LiveName, after: float, name: str
) -> None:
    disturbed = virtual_time.run(
        scaled_meanwhile(live, after, lambda disturbed: disturbed.freeze(name, LONG_SECONDS), dies=name),
        limit_seconds=300,
    )
    assert name == "registry-0" or disturbed.leases["dead"] == 1  # the process that judges does not judge itself
    assert disturbed.leases["alive"] >= len(EVERYBODY)
    assert max(disturbed.starts.values()) == 1


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(one, marks=pytest.mark.slow) for one in range(3, 20))])
def test_stalls_one_after_the_other(seed: int) -> None:
    """A machine whose processor is taken away again and again."""

    def stalls(disturbed: DisturbedPlane) -> None:
        at = 0.0
        for _ in range(6):
            seconds = disturbed.chance.uniform(0.5, 5.0)
            disturbed.later(at, lambda seconds=seconds: disturbed.stall(seconds))  # type: ignore[misc]
            at += seconds + disturbed.chance.uniform(0.05, 1.5)

    disturbed = virtual_time.run(scaled_meanwhile(LIVES[seed % 3], 0.3, stalls, seed), limit_seconds=300)
    assert disturbed.leases == {"alive": len(EVERYBODY)}
    assert disturbed.ended == ["done"] * len(disturbed.ended)


def test_a_death_after_a_stall_is_found_as_fast_as_ever_and_no_sooner() -> None:
    async def found_after(stall: float) -> float:
        disturbed = DisturbedPlane(1)
        try:
            disturbed.start(*EVERYBODY)
            await asyncio.sleep(2.0)
            if stall:
                disturbed.stall(stall)
                await asyncio.sleep(0.1)
            disturbed.lives["worker-0"].cancel()
            disturbed.kill("worker-0")
            began = asyncio.get_running_loop().time()
            await until(lambda: disturbed.leases.get("dead", 0) == 1)
            return asyncio.get_running_loop().time() - began
        finally:
            await disturbed.end()

    assert 2.0 <= virtual_time.run(found_after(0.0), limit_seconds=100) <= 2.6
    assert 2.0 + 4.5 <= virtual_time.run(found_after(5.0), limit_seconds=100) <= 2.6 + 5.0


@pytest.mark.parametrize("after", [0.0, 0.85, 1.6])
def test_a_command_that_is_not_answered_in_time_is_told_again(after: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.planner.outbox.COMMAND_SECONDS", 0.5)
    disturbed = virtual_time.run(
        scaled_meanwhile("off", after, lambda disturbed: disturbed.freeze("worker-1", SHORT_SECONDS)), limit_seconds=300
    )
    assert disturbed.ended == ["done"] * len(disturbed.ended)
