"""The course of a run with faults: start the system, send the load, disturb it until the load ends."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from load.arrivals import Phase, Shape, poisson
from load.bench.engine_alone import CONTEXT
from load.chaos.client import PatientClient
from load.chaos.faults import Happening, Tormentor
from load.chaos.schedule import Targets, plan_faults
from load.chaos.settings import ChaosSettings
from load.client import open_session, send_open_loop
from load.demo.stage import end_on_sigterm
from load.records import Ask, RequestRecord
from load.tally import Tally
from load.target import learn_target, make_asks
from load.trace import Trace, Window, replay
from load.traces import read_trace
from services.supervisor.processes import Echo
from services.supervisor.settings import ModelSettings, StackSettings
from services.supervisor.stack import Stack
from shared.world import SystemClock

MODEL = "chaos"
MIB = 1024 * 1024
REQUEST_SECONDS = 180.0
PROGRESS_SECONDS = 5.0
TEMPERATURE = 0.8
RESUMPTIONS = "livescale_gateway_resumptions"

Tell = Callable[[str], None]


class Run(msgspec.Struct, frozen=True):
    """What a run left behind."""

    asks: list[Ask]
    records: list[RequestRecord]
    happenings: list[Happening]
    start: float
    end: float
    resumed: int
    refused: int


async def run_chaos(settings: ChaosSettings, checkpoint: Path, trace: Trace, tell: Tell, echo: Echo) -> Run:
    """Everything that needs the system up; on return it is down again. SIGTERM cancels it, as Ctrl-C does.

    Raises TargetError, and what a Stack raises.
    """
    end_on_sigterm()
    async with (
        Stack(stack_settings(settings, checkpoint), progress=tell, echo=echo) as stack,
        open_session(stack.url, "", REQUEST_SECONDS) as session,
    ):
        tally = Tally()
        client = PatientClient(session, MODEL, SystemClock(), tally)
        target = await learn_target(session, MODEL)
        # The undisturbed run has to fit as well.
        target = msgspec.structs.replace(target, context=min(target.context, CONTEXT))
        asks = [seeded(ask) for ask in make_asks(trace, target, settings.seed)]
        faults = plan_faults(settings.seed, 60 * settings.minutes, targets(settings, list(stack.supervisor.children)))
        tell(f"{len(asks)} requests and {len(faults)} faults in {60 * settings.minutes:.0f} s")
        records: list[RequestRecord] = []
        start = client.now()
        tormentor = Tormentor(stack, MODEL, client.now, tell)
        tormenting = asyncio.create_task(tormentor.run(faults, start), name="faults")
        try:
            sending = send_open_loop(client, asks, records)
            await watched(sending, stack, lambda: tell(describe(tally, client, start)))
            await tormenting
        finally:
            tormenting.cancel()
            await asyncio.wait([tormenting])
        resumed = await count_resumed(session)
        return Run(asks, records, tormentor.happenings, start, client.now(), resumed, len(client.refusals))


def stack_settings(settings: ChaosSettings, checkpoint: Path) -> StackSettings:
    parameters = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    return StackSettings(
        models=(ModelSettings(name=MODEL, path=str(checkpoint)),),
        workers=settings.workers,
        port=0,
        dtype=settings.dtype,
        arena_bytes=2 * parameters + 64 * MIB,
        kv_bytes=128 * MIB,
        transport=settings.transport,
    )


def make_load(settings: ChaosSettings) -> Trace:
    """The arrivals. Raises TraceError and ValueError."""
    seconds = 60 * settings.minutes
    if settings.trace is None:
        shape = Shape(settings.prompt_tokens, settings.output_tokens)
        return poisson([Phase("chaos", seconds, settings.rate)], shape, settings.seed)
    part = Window(0.0, seconds)
    return replay(read_trace(Path(settings.trace)), part, settings.rate_scale, settings.length_scale, settings.seed)


def seeded(ask: Ask) -> Ask:
    """Every other request is sampled: both ways of choosing have to survive."""
    if ask.index % 2 == 0:
        return ask
    return msgspec.structs.replace(ask, temperature=TEMPERATURE, seed=random.Random(ask.index).getrandbits(31))


def targets(settings: ChaosSettings, processes: Sequence[str]) -> Targets:
    """Processes of the services that may be disturbed. Raises ValueError for a service that does not run."""
    services = settings.disturb.split(",")
    named = {service: [name for name in processes if name.rsplit("-", 1)[0] == service] for service in services}
    for service, names in named.items():
        if not names:
            raise ValueError(f"--disturb: no {service!r} runs here; there are: {', '.join(sorted(processes))}")
    others = [name for service in services if service != "worker" for name in named[service]]
    return Targets(named.get("worker", []), others, settings.workers)


async def watched(work: Coroutine[None, None, None], stack: Stack, show: Callable[[], None]) -> None:
    """Do the work, with a line of progress now and then. Raises ChildFailed once a process is given up."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=PROGRESS_SECONDS)
            stack.supervisor.check()
            show()
    finally:
        task.cancel()
        await asyncio.wait([task])
    task.result()


def describe(tally: Tally, client: PatientClient, start: float) -> str:
    return (
        f"{client.now() - start:4.0f} s  sent {tally.sent}  running {tally.running}  tokens {tally.tokens}  "
        f"refused {sum(client.refusals.values())}"
    )


async def count_resumed(session: aiohttp.ClientSession) -> int:
    """How often a gateway submitted a request again because its worker was lost."""
    async with session.get("metrics") as response:
        families = text_string_to_metric_families(await response.text())
        samples = [sample for family in families if family.name == RESUMPTIONS for sample in family.samples]
        return round(sum(sample.value for sample in samples if sample.name.endswith("_total")))
