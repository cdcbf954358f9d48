"""`livescale bench control`: what gateway, router and bus add to the engine's latency; decision to first byte."""

import asyncio
import random
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop
from msgspec import structs

from load.bench.engine_alone import EngineAlone, engine_alone
from load.bench.record import Printer, measured
from load.bench.system import logged
from load.client import Client, open_session
from load.kept import kept_model
from load.records import Ask, find_fault
from load.tally import Tally
from services.cli.scale import ask_scale
from services.supervisor.processes import Echo
from services.supervisor.settings import ModelSettings, StackSettings
from services.supervisor.stack import Stack
from shared.bus.contract import Bus
from shared.messages.membership import AskModels, Register
from shared.messages.requests import Submit
from shared.subjects import MODELS, REGISTER
from shared.world import SystemClock

BENCH = "control"
MODEL = "bench"
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 8
CONCURRENCY = 16
LOAD_SHARE = 0.7
FIRST_BYTE_MS = 20.0
NEVER = 4e9

AskOnce = Callable[[int], Awaitable[None]]


@dataclass(frozen=True)
class Latencies:
    """Seconds of each request, sorted."""

    seconds: Sequence[float]

    def quantile(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, round(share * (len(self.seconds) - 1)))]


@dataclass(frozen=True)
class Way:
    """How requests reach the engine, idle and under load."""

    idle: Latencies
    loaded: Latencies


@click.command()
@click.option("--requests", type=click.IntRange(20), default=200, show_default=True, help="In each case.")
@click.option("--scales", type=click.IntRange(1), default=15, show_default=True, help="Out and in, for the first byte.")
def control(requests: int, scales: int) -> None:
    """What gateway, router and bus add to the engine's latency; from a decision to the first byte moving.

    Every request is 64 tokens in, 8 out, float32, greedy, through the REST gateway and, in the same run, straight
    into the same engine in this process: one at a time, and as a Poisson stream of 70 % of the measured capacity.
    """
    printer = Printer(BENCH)
    checkpoint = kept_model("tiny", printer.progress)
    with logged() as echo:
        uvloop.run(run(printer, checkpoint, requests, scales, echo))
    if not printer.finish():
        sys.exit(1)


async def run(printer: Printer, checkpoint: Path, requests: int, scales: int, echo: Echo) -> None:
    async with Stack(stack_settings(checkpoint), progress=printer.progress, echo=echo) as stack:
        async with open_session(stack.url, "", 60.0) as session:
            client = Client(session, MODEL, SystemClock(), Tally())
            rate, through = await measure(printer, "gateway", lambda number: fetch(client, number), requests, None)
        await allow_two(stack.bus)
        firsts = [await first_byte(stack, printer, number, scales) for number in range(scales)]
    async with engine_alone(checkpoint, "float32") as engine:
        _, alone = await measure(printer, "engine", lambda number: ask_engine(engine, number), requests, rate)
    for case, ours, bare in (("idle", through.idle, alone.idle), ("at 70 %", through.loaded, alone.loaded)):
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            added = (ours.quantile(share) - bare.quantile(share)) * 1e3
            printer.emit(measured(BENCH, f"added latency, {case}, {name}", added, "ms", bare.quantile(share) * 1e3))
    printer.emit(measured(BENCH, "capacity", rate, "requests/s"))
    median = statistics.median(firsts) * 1e3
    printer.emit(measured(BENCH, "decision to first byte, p50", median, "ms", FIRST_BYTE_MS, at_most=1.0))


def stack_settings(checkpoint: Path) -> StackSettings:
    """One instance and a spare worker that stays one, whatever the load."""
    model = ModelSettings(name=MODEL, path=str(checkpoint), max_instances=1, downscale_delay_s=3600)
    return StackSettings(models=(model,), workers=2, port=0, device="cpu", dtype="float32", share_memory="off")


async def allow_two(bus: Bus) -> None:
    """Let the model have the spare worker too."""
    models = await bus.call(MODELS, AskModels(), timeout=5.0)
    spec = structs.replace(models.models[0].spec, max_instances=2)
    await bus.call(REGISTER, Register(spec=spec), timeout=5.0)


async def measure(printer: Printer, name: str, ask: AskOnce, requests: int, rate: float | None) -> tuple[float, Way]:
    """Idle, then under 70 % of `rate` requests/s; the rate is measured here where it is None."""
    for number in range(10):
        await ask(-1 - number)
    printer.progress(f"{name}: {requests} requests, one at a time")
    idle = [await timed(ask, number) for number in range(requests)]
    if rate is None:
        rate = await find_capacity(ask, requests)
    printer.progress(f"{name}: {requests} requests at {LOAD_SHARE * rate:.0f} a second")
    loaded = await open_loop(ask, requests, LOAD_SHARE * rate)
    return rate, Way(Latencies(sorted(idle)), Latencies(sorted(loaded)))


async def timed(ask: AskOnce, number: int) -> float:
    clock = SystemClock()
    begun = clock.now()
    await ask(number)
    return clock.now() - begun


async def find_capacity(ask: AskOnce, requests: int) -> float:
    """Requests a second with as many at a time as an instance runs."""
    clock, numbers = SystemClock(), iter(range(requests, 2 * requests))

    async def lane() -> None:
        for number in numbers:
            await ask(number)

    begun = clock.now()
    async with asyncio.TaskGroup() as lanes:
        for _ in range(CONCURRENCY):
            lanes.create_task(lane())
    return requests / (clock.now() - begun)


async def open_loop(ask: AskOnce, requests: int, rate: float) -> list[float]:
    """Poisson arrivals, the same at every call; seconds of each request from when it was due."""
    chance, clock = random.Random(0), SystemClock()
    begun, due, took = clock.now(), 0.0, []

    async def one(number: int, at: float) -> None:
        await ask(number)
        took.append(clock.now() - begun - at)

    async with asyncio.TaskGroup() as tasks:
        for number in range(requests):
            due += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, begun + due - clock.now()))
            tasks.create_task(one(2 * requests + number, due))
    return took


def prompt(number: int) -> list[int]:
    return random.Random(number).choices(range(1_000), k=PROMPT_TOKENS)


async def fetch(client: Client, number: int) -> None:
    """Through the gateway, streamed."""
    record = await client.fetch(Ask(number, 0.0, prompt(number), OUTPUT_TOKENS), client.now())
    if fault := find_fault(record):
        raise click.ClickException(f"request {number}: {fault}")


async def ask_engine(engine: EngineAlone, number: int) -> None:
    await engine.ask(submit(number))


def submit(number: int) -> Submit:
    return Submit(
        request_id=f"r{number}",
        model=MODEL,
        gateway="none",
        prompt=prompt(number),
        max_tokens=OUTPUT_TOKENS,
        deadline=NEVER,
    )


async def first_byte(stack: Stack, printer: Printer, number: int, scales: int) -> float:
    """Scale out by one and back; seconds from the decision to the first byte at the new worker."""
    printer.progress(f"scale {number + 1} of {scales}")
    _, record = await ask_scale(stack.bus, MODEL, 2, 60.0)
    if record is None or record.state != "done":
        raise click.ClickException(f"a scale failed: {record.outcome if record else 'nothing had to be done'}")
    await ask_scale(stack.bus, MODEL, 1, 60.0)
    return next(phase.at for phase in record.phases if phase.name == "first_byte") - record.decision.at
