"""Faults happen to real processes; a fault that has no victim is reported."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from livescale.load.chaos.faults import FaultInjector, find_victim
from livescale.load.chaos.schedule import LOADING, SOURCE, Fault
from livescale.load.story import Story
from livescale.services.supervisor.stack import Stack
from livescale.shared.bus.contract import Bus, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.scaling import RoleSet, SetRole
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import ROLE
from tests.load import sample_run
from tests.supervisor.children import until

ALLOWED = ["worker-0", "worker-1"]


@pytest.fixture
async def victim() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def tormentor(
    pid: int, allowed: Sequence[str] = ALLOWED, name: str = "worker-0", bus: Bus | None = None
) -> FaultInjector:
    """`worker-0` runs, `worker-1` is just being started again, and no planner answers unless the `bus` has one."""
    children = {name: SimpleNamespace(pid=pid), "worker-1": SimpleNamespace(pid=None)}
    stack = SimpleNamespace(supervisor=SimpleNamespace(children=children), bus=bus or LocalBroker().connect())
    return FaultInjector(cast(Stack, stack), Story("m"), "m", allowed, time.time, lambda line: None)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_killed_process_is_dead_and_the_others_are_said_to_be_missed(
    victim: asyncio.subprocess.Process,
) -> None:
    made = tormentor(victim.pid)
    faults = [Fault(0.0, "kill", target) for target in ("worker-0", "worker-1", LOADING)]
    await made.run(faults, time.time())
    assert await victim.wait() == -signal.SIGKILL
    told = {str(one): (one.struck, one.kind) for one in made.seen_faults}
    assert told == {
        "kill worker-0": (True, "kill worker"),
        "kill worker-1: it was not running": (False, "kill worker"),
        "kill a loading worker: there was none": (False, "kill"),
    }


async def test_a_frozen_process_goes_on_after_its_time_and_when_the_run_is_cancelled(
    victim: asyncio.subprocess.Process,
) -> None:
    made = tormentor(victim.pid)
    await made.run([Fault(0.0, "freeze", "worker-0", seconds=0.05)], time.time())
    await until(lambda: state(victim.pid) == "S")
    running = asyncio.create_task(made.run([Fault(0.0, "freeze", "worker-0", seconds=60.0)], time.time()))
    await until(lambda: state(victim.pid) == "T")
    running.cancel()
    await asyncio.wait([running])
    await until(lambda: state(victim.pid) == "S")


async def test_in_a_stall_everybody_stands_still_who_may_not_be_hit_and_who_is_frozen_besides_as_well(
    victim: asyncio.subprocess.Process,
) -> None:
    made = tormentor(victim.pid, allowed=["worker-0"], name="planner-0")
    await made.run([Fault(0.0, "stall", "", seconds=0.3)], time.time())
    assert [(one.kind, one.struck) for one in made.seen_faults] == [("stall", True)]
    await until(lambda: state(victim.pid) == "S")
    made = tormentor(victim.pid)
    faults = [Fault(0.0, "freeze", "worker-0", seconds=0.2), Fault(0.0, "stall", "", seconds=60.0)]
    running = asyncio.create_task(made.run(faults, time.time()))
    await asyncio.sleep(0.5)  # the freeze is over, and the stall is not
    assert state(victim.pid) == "T"
    running.cancel()
    await asyncio.wait([running])
    await until(lambda: state(victim.pid) == "S")


async def test_a_fault_after_a_scale_happens_even_without_a_scale(
    victim: asyncio.subprocess.Process,
) -> None:
    made = tormentor(victim.pid)
    await made.run([Fault(0.0, "scale", "", instances=2, then=Fault(0.01, "kill", "worker-0"))], time.time())
    assert await victim.wait() == -signal.SIGKILL
    scale, kill = made.seen_faults
    assert str(scale).startswith("scale to 2: not now")
    assert (scale.struck, kill.struck, kill.victim) == (False, True, "worker-0")


async def test_an_instance_is_given_another_role_or_it_is_told_why_not(victim: asyncio.subprocess.Process) -> None:
    asked: list[SetRole] = []

    async def give(order: SetRole, context: Context) -> RoleSet:
        asked.append(order)
        if order.worker != "worker-0":
            raise Refusal(409, "it leads no instance")
        return RoleSet(worker=order.worker, instance="i", role=order.role)

    broker = LocalBroker()
    await broker.connect().serve(ServiceInfo("planner", "planner-0", "gives roles"), [Endpoint(ROLE, give)])
    made = tormentor(victim.pid, bus=broker.connect())
    faults = [Fault(0.0, "role", worker, role="decode") for worker in ALLOWED]
    await made.run(faults, time.time())
    assert [(one.worker, one.role) for one in asked] == [(worker, "decode") for worker in ALLOWED]
    assert [(str(one), one.struck) for one in made.seen_faults] == [
        ("have worker-0 be decode", True),
        ("have worker-1 be decode: not now: 409: it leads no instance", False),
    ]
    for bus in list(broker.buses):
        await bus.close()


def test_a_part_in_a_scale_is_had_by_who_loads_or_sends_and_may_be_hit() -> None:
    story = Story(sample_run.MODEL)
    story.on_message(sample_run.report("worker-1", "loading"), 1.0)
    running = sample_run.scale(1.0, "worker-1")
    assert find_victim(LOADING, story, ["worker-0", "worker-1"]) == "worker-1"
    assert find_victim(LOADING, story, ["worker-0"]) is None
    story.on_message(running, 1.0)
    assert find_victim(SOURCE, story, ["worker-0"]) is None  # it is done
    story.on_message(type(running)(id="s", decision=running.decision, state="loading", plan=running.plan), 1.0)
    assert find_victim(SOURCE, story, ["worker-0"]) == "worker-0"
    assert find_victim("nats", story, ["nats"]) == "nats"
