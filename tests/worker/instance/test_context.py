"""What is started as a task of a worker ends with it, and nothing is begun once it is ending."""

import asyncio

import pytest

from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.contract import ServiceInfo
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_time import run
from tests.shared.transfer.virtual_link import VirtualLink, new_mail
from tests.worker.live.engines import CLOCK, MODELLED


def context_of(tasks: asyncio.TaskGroup) -> WorkerContext:
    bus, telemetry = LocalBroker(clock=CLOCK).connect(), Telemetry("worker", "w")
    world = World(ServiceInfo("worker", "w", "under test"), "here", bus, CLOCK, CountedIds(), telemetry)
    return WorkerContext(world, VirtualLink(new_mail(), b"w"), tasks, MODELLED.make_runner(WorkerSettings()))


def test_work_that_is_started_runs_beside_and_is_awaited_at_the_end() -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(1.0)
        done.append("work")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            context = context_of(tasks)
            started = context.start(work(), "some work")
            assert started is not None
            assert started.get_name() == "some work"
            assert (context.me, done) == ("w", [])
        assert done == ["work"]

    run(main())


def test_a_worker_that_is_ending_begins_nothing() -> None:
    began = []

    async def work() -> None:
        began.append("work")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            context = context_of(tasks)

            async def late() -> None:
                try:
                    await asyncio.sleep(9.0)
                finally:
                    assert context.start(work(), "late") is None

            tasks.create_task(late())
            await asyncio.sleep(1.0)
            raise ValueError("the worker ends")

    with pytest.raises(ExceptionGroup) as ended:
        run(main())
    assert [str(error) for error in ended.value.exceptions] == ["the worker ends"]
    assert not began
