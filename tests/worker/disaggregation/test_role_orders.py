"""Orders of roles that get lost, or outlive the planner that gave them: engines that compute make the tokens of
undisturbed ones, while requests are on their way and after it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from livescale.services.planner.main import make_planner
from livescale.services.planner.settings import PlannerSettings
from livescale.shared.bus.contract import BusError, ServiceInfo
from livescale.shared.messages.membership import Role
from livescale.shared.messages.scaling import RoleSet, SetRole
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.simulation.local_bus import LocalBus
from livescale.shared.subjects import ROLE
from tests.worker.disaggregation.pairs import COMPUTING, by_turns, counted, with_pair
from tests.worker.live.engines import CLOCK, EngineKind
from tests.worker.live.pool import BUS_SECONDS, WorkerPool
from tests.worker.requests import penalised, random_prompt, submit

HEARD_SECONDS = 1.0  # in which a new planner hears every worker


class PlannerProcess:
    """The planner of a pool. `kill` ends it without a word."""

    def __init__(self, pool: WorkerPool) -> None:
        self.bus: LocalBus = pool.broker.connect()
        info, telemetry = ServiceInfo("planner", "planner-0", "under test"), Telemetry("planner", "planner-0")
        world = World(info, "here", self.bus, CLOCK, CountedIds(), telemetry)
        self._running = pool.tasks.create_task(make_planner(world, PlannerSettings(disaggregation="on")).run())

    async def kill(self) -> None:
        self.bus.hold()
        self._running.cancel()
        await asyncio.wait([self._running])
        self.bus.forget()
        await self.bus.close()


async def planner_of(pool: WorkerPool) -> PlannerProcess:
    planner = PlannerProcess(pool)
    await asyncio.sleep(HEARD_SECONDS)
    return planner


async def order(pool: WorkerPool, worker: str, role: Role) -> RoleSet:
    return await pool.bus.call(ROLE, SetRole(worker=worker, role=role), timeout=10)


@contextmanager
def losing(pool: WorkerPool, what: str, count: int) -> Iterator[list[int]]:
    """Have the first messages about a role with `what` in their subject get lost. Yields how many are left to lose."""
    before, left = pool.broker.delays, [count]

    def delays(subject: str) -> tuple[float, ...]:
        is_lost = left[0] > 0 and subject.endswith(".role") and what in subject and "planner" not in subject
        left[0] -= is_lost
        return () if is_lost else (BUS_SECONDS,)

    pool.broker.delays = delays
    yield left
    pool.broker.delays = before


async def ask(pool: WorkerPool, first: int, count: int = 3) -> None:
    """Submit requests as a router does, by what workers report: to who prefills, for who decodes. Where nobody
    prefills, one worker does both."""
    role_of = {report.role: worker for worker, report in pool.reports.items()}
    prefill = role_of.get("prefill", "p")
    decode = role_of.get("decode") if "prefill" in role_of else None
    for number in range(first, first + count):
        request = submit(f"r{number}", random_prompt(number, 200), max_tokens=30, sampling=penalised(number))
        await pool.client.submit(request, prefill, decode=decode)


def given(pool: WorkerPool, worker: str) -> float:
    """How many requests this worker has handed over."""
    return counted(pool, worker, "transfers_total")


async def have_roles(pool: WorkerPool, **roles: Role) -> None:
    await pool.until(lambda: all(pool.reports[worker].role == role for worker, role in roles.items()))


@by_turns("what", "worker.", "answer.")
def test_an_order_or_an_answer_that_is_lost_is_given_again_while_requests_move(what: str, kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        planner = await planner_of(pool)
        await order(pool, "p", "prefill")
        await order(pool, "d", "decode")
        await have_roles(pool, p="prefill", d="decode")
        await ask(pool, 0)
        changed: list[tuple[str, Role]] = [("p", "decode"), ("d", "prefill")]
        for worker, role in changed:
            with losing(pool, what, 2) as left:
                assert (await order(pool, worker, role)).role == role
                assert left == [0]
        await have_roles(pool, p="decode", d="prefill")
        await ask(pool, 3)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert (given(pool, "p"), given(pool, "d")) == (3, 3)
        await planner.kill()

    with_pair(act, kind=kind)


@COMPUTING
def test_an_order_outlives_its_planner_and_the_next_one_finds_the_role(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        planner = await planner_of(pool)
        await order(pool, "p", "prefill")
        await order(pool, "d", "decode")
        await have_roles(pool, p="prefill", d="decode")
        await ask(pool, 0)
        asking = asyncio.create_task(order(pool, "p", "decode"))
        await asyncio.sleep(2.5 * BUS_SECONDS)  # the worker has the order, and nobody its answer
        await planner.kill()
        with pytest.raises(BusError):
            await asking
        await have_roles(pool, p="decode")
        planner = await planner_of(pool)
        await ask(pool, 3)
        assert (await order(pool, "p", "decode")).before == "decode"
        assert (await order(pool, "d", "prefill")).before == "decode"
        await have_roles(pool, p="decode", d="prefill")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))  # so that p has room
        await ask(pool, 6)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert (given(pool, "p"), given(pool, "d")) == (3, 3)
        await planner.kill()

    with_pair(act, kind=kind)
