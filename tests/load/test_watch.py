"""Calibration, watching and the screen, each with what it really talks to or prints."""

import asyncio
import os
import signal
import sys
import time

import pytest
from msgspec.structs import replace

from livescale.load.incidents import TICK_SECONDS
from livescale.load.story import Story
from livescale.load.watch import complete_story, describe, watching, watching_lives
from livescale.services.supervisor.processes import ProcessCommand, Supervisor
from livescale.shared.bus.contract import Context, Endpoint, ServiceInfo
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.scaling import AskScales, ScaleRecords
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import BLOCK, DECISION, HEARTBEAT, INSTANCE, PLAN, SCALES, TRANSFER
from tests.clocks import LoopClock
from tests.load import sample_run
from tests.load.sample_run import MODEL, START


def test_events_that_people_want_to_read_have_a_line() -> None:
    lines = [line for _, message in sample_run.scale_out_and_in() if (line := describe(message))]
    assert lines == [
        "decision: 1 -> 2 instances, because queued prefill work asks for 2 instances",
        "worker-1: parameters whole (nothing)",
        "worker-1: serves",
        "worker-1: first token",
        "decision: 2 -> 1 instances, because queued prefill work asks for 1 instances",
    ]


def test_watching_hears_every_kind_of_event_and_leaves_nothing_behind() -> None:
    story, notes = Story(MODEL), list[str]()

    async def watch() -> None:
        broker = LocalBroker()
        bus = broker.connect()
        async with watching(broker.connect(), story, LoopClock(START), notes.append):
            bus.publish(HEARTBEAT, sample_run.report("worker-1", "loading"), service="worker", id="worker-1")
            bus.publish(DECISION, sample_run.decision(20.0, 1, 2), model=MODEL)
            bus.publish(PLAN, sample_run.scale(20.0, "worker-1", phases=sample_run.PHASES), id="scale-worker-1")
            bus.publish(BLOCK, sample_run.block(21.0, "worker-1", 12), worker="worker-1")
            bus.publish(TRANSFER, sample_run.whole(21.0, "worker-1"), plan="scale-worker-1")
            bus.publish(INSTANCE, sample_run.served(22.0, "worker-1", "serving"), instance="instance-of-worker-1")
            await bus.flush()
        await bus.close()

    run(watch())  # fails on tasks that are left
    (newcomer,) = story.newcomers(START)
    assert newcomer.blocks == [(START + 21.0, 12)]
    assert (newcomer.whole_at, newcomer.serving_at) == (START + 24.2, START + 24.3)
    assert story.workers["worker-1"].state == "loading"
    assert len(notes) == 3


def test_what_goes_wrong_while_watching_reaches_the_caller_as_it_is() -> None:
    async def watch() -> None:
        async with watching(LocalBroker().connect(), Story(MODEL), LoopClock(START), print):
            raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        run(watch())


def test_records_of_the_planner_complete_the_story() -> None:
    story = Story(MODEL)

    async def answer(question: AskScales, context: Context) -> ScaleRecords:
        assert question.model == MODEL
        return ScaleRecords(records=[sample_run.scale(20.0, "worker-1")])

    async def complete() -> None:
        broker = LocalBroker()
        planner, bus = broker.connect(), broker.connect()
        await planner.serve(ServiceInfo("planner", "planner-0", "plans"), [Endpoint(SCALES, answer)])
        await complete_story(bus, story, MODEL, LoopClock(START))
        await bus.close()
        await planner.close()

    run(complete())
    assert [newcomer.worker for newcomer in story.newcomers(START)] == ["worker-1"]


async def test_a_killed_process_and_a_stall_of_ones_own_are_noted_as_they_happen() -> None:
    notes: list[str] = []
    sleeper = ProcessCommand("sleeper", (sys.executable, "-c", "import time; time.sleep(60)"))
    async with Supervisor(lambda name, line: None) as supervisor:
        supervisor.start(sleeper)
        while (pid := supervisor.children["sleeper"].pid) is None:  # noqa: ASYNC110 another process tells nobody
            await asyncio.sleep(0.01)
        async with watching_lives(supervisor.children, SystemClock(), notes.append) as incidents:
            await asyncio.sleep(2 * TICK_SECONDS)  # until the watch has looked
            time.sleep(0.8)  # noqa: ASYNC251 the stall
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                while "sleeper was started again" not in notes:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # another process tells nobody
    # A busy machine may have stood still more often.
    assert incidents[0].what == "stall"
    assert notes[0].startswith("the machine stood still for ")
    assert [each.line for each in incidents if each.what != "stall"] == ["sleeper died", "sleeper was started again"]


def test_a_process_that_counts_as_dead_is_reported_and_kept() -> None:
    story = sample_run.told([])
    dead = LeaseChanged(service="worker", id="worker-1", epoch=3, state="dead", reason="silent for 2.5 s", at=START)
    story.on_message(dead, START)
    story.on_message(replace(dead, state="suspect"), START)
    assert story.deaths == [dead]
    assert describe(dead) == "worker-1 counts as dead: silent for 2.5 s"
