"""Runs a scenario in a real system: processes on this machine, with modelled engines and shaped links."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from msgspec.structs import replace

from livescale.load.bench.systems.play import AnsweredRequest
from livescale.load.client import open_client, send_open_loop
from livescale.load.hardware import busy_share, parse_times, read_proc
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.scenario.fidelity import ObservedRun
from livescale.load.scenario.requests import Due, make_ask
from livescale.load.scenario.result import ScaleFigures
from livescale.load.scenario.system import ScenarioSystem
from livescale.load.watch import watching_lives
from livescale.load.workers_in_use import counting, used_seconds
from livescale.services.supervisor.processes import Echo
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Progress, Stack
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.scaling import AskScales, ScaleRecord
from livescale.shared.runtime.clock import Clock, SystemClock
from livescale.shared.runtime.yaml_file import names_file
from livescale.shared.subjects import SCALES

CALL_SECONDS = 5.0
REQUEST_SECONDS = 300.0
LEARN_SECONDS = 2.0  # until every worker has reported
MOST_SCALES = 1_000


def live_settings(system: ScenarioSystem) -> StackSettings:
    """The settings of the real system. Raises ValueError for what only a simulation can do, which names the key."""
    file = system.scenario.file
    if file.faults:
        raise ValueError("faults: live runs have none; leave them out")
    if system.scenario.simulated:
        raise ValueError("settings: system: no real link takes no time; name another one")
    sizes = [number for number, model in enumerate(file.models) if model.path.startswith("size:")]
    if sizes:
        raise ValueError(f"models[{sizes[0]}].path: a real system reads parameters; give a directory with a checkpoint")
    topology = str(system.scenario.beside / file.topology) if names_file(file.topology) else file.topology
    return replace(system.stack, topology=topology, shaped=True, port=0)


async def run_live(system: ScenarioSystem, requests: Sequence[Due], tell: Progress, echo: Echo) -> ObservedRun:
    """Start the system, send all requests, and return what came of them. Raises what `Stack` raises."""
    settings, clock, warm_up = live_settings(system), SystemClock(), system.scenario.file.warm_up
    asks = make_asks(system, requests)
    async with Stack(settings, progress=tell, echo=echo) as stack, counting(stack.bus) as in_use:
        async with watching_lives(stack.supervisor.children, clock, tell) as incidents:
            await asyncio.sleep(LEARN_SECONDS)
            before = parse_times(read_proc("stat"))
            begun, records = await send_all(stack.url, asks, clock)
            await asyncio.sleep(max(0.0, begun + system.scenario.file.seconds - clock.wall()))
            end, after = clock.wall(), parse_times(read_proc("stat"))
        scales = await ask_scales(stack.bus)
    return ObservedRun.of(
        [ScaleFigures.of(record, begun) for record in scales],
        [
            AnsweredRequest(record.due - begun, record.prompt_tokens, record.ttft, record.gaps)
            for record in records
            if record.ttft is not None and find_fault(record) is None and record.due - begun >= warm_up
        ],
        used_seconds(in_use.steps, begun + warm_up, end),
        busy_share(before, after),
        [each.line for each in incidents],
    )


def make_asks(system: ScenarioSystem, requests: Sequence[Due]) -> dict[str, list[Ask]]:
    """What is asked of each model, made before anything starts: prompts take time to draw."""
    asks = defaultdict[str, list[Ask]](list)
    for due in requests:
        asks[due.model].append(make_ask(system, due))
    return asks


async def send_all(url: str, asks: Mapping[str, list[Ask]], clock: Clock) -> tuple[float, list[RequestRecord]]:
    """Send each request when it is due, and wait for all. Returns the wall's time from which they are due, too."""
    records = list[RequestRecord]()
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(open_client(url, model, REQUEST_SECONDS)) for model in asks]
        begun = clock.wall()
        async with asyncio.TaskGroup() as tasks:
            for client, asked in zip(clients, asks.values(), strict=True):
                tasks.create_task(send_open_loop(client, asked, records))
    return begun, records


async def ask_scales(bus: Bus) -> list[ScaleRecord]:
    return (await bus.call(SCALES, AskScales(limit=MOST_SCALES), timeout=CALL_SECONDS)).records
