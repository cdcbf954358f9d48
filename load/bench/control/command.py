"""`livescale bench control`: the latency that gateway, router and bus add to the engine's, and the time from a decision
to scale until the first byte."""

import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import click
import uvloop

from livescale.load.bench.control.bare_hops import STEP_SECONDS, bare_hops
from livescale.load.bench.control.bare_stream import bare_stream
from livescale.load.bench.control.rows import (
    BENCH,
    ENGINE,
    FEW,
    GATEWAY,
    HOPS,
    MANY,
    OUTPUT_TOKENS,
    Cost,
    Latencies,
    PathLatencies,
    cost_rows,
    measure_costs,
    rows,
)
from livescale.load.bench.control.ways import (
    CONCURRENCY,
    MODEL,
    AskOnce,
    ask_engine,
    fetch,
    find_capacity,
    in_turns,
    open_loop,
)
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.run import measuring
from livescale.load.bench.system import BenchSystem, Launcher, renewable
from livescale.load.client import LoadClient, open_client
from livescale.load.engine_alone import engine_alone
from livescale.load.kept import kept_model

LOAD_SHARE = 0.7
ANSWER_SECONDS = 60.0


@click.command()
@click.option(
    "--requests",
    type=click.IntRange(20),
    default=200,
    show_default=True,
    help="Number of requests of each case; p99 is shown from 200 on.",
)
@click.option(
    "--scales",
    type=click.IntRange(1),
    default=15,
    show_default=True,
    help="Number of scale-outs for the time until the first byte.",
)
def control(requests: int, scales: int) -> None:
    """Measure the latency that gateway, router and bus add to the engine, and the time from a decision to the first
    byte.

    Every request has 64 tokens of prompt and 8 of output. It goes through the REST gateway and, in the same run,
    straight to the same engine in this process. Requests come one at a time, and as a Poisson stream of 70 % of the
    measured capacity. Three processes that only pass requests on, over the same NATS server, show what the hops cost on
    this machine. The CPU time of gateway, router and NATS is shown by request and by token, beside that of a starlette
    server that only streams as much.
    """
    printer = RecordPrinter(BENCH)
    checkpoint = kept_model("tiny", printer.progress)
    with measuring(printer) as launcher:
        uvloop.run(run(printer, checkpoint, requests, scales, launcher))
    if not printer.finish():
        sys.exit(1)


async def run(printer: RecordPrinter, checkpoint: Path, requests: int, scales: int, launcher: Launcher) -> None:
    async with (
        renewable(partial(start, launcher, checkpoint)) as systems,
        engine_alone(checkpoint, "float32") as engine,
    ):
        system = systems.now
        async with open_client(system.url, MODEL, ANSWER_SECONDS) as client:
            ways = {GATEWAY: partial(fetch, client), ENGINE: partial(ask_engine, engine)}
            latencies = await measure_latencies(printer, system.stack.nats_url, ways, requests)
            costs, bare = await measure_cpu(printer, system, client, requests)
        firsts = []
        for number in range(scales):
            printer.progress(f"scale {number + 1} of {scales}")
            firsts.append(await printer.samples.take_async(lambda: first_byte(systems.now), systems.renew))
    for record in (*rows(latencies, firsts), *cost_rows(costs, bare)):
        printer.emit(record)


async def measure_latencies(
    printer: RecordPrinter, nats_url: str, ways: Mapping[str, AskOnce], requests: int
) -> PathLatencies:
    """Idle in turns, also over bare processes; then under 70 % of what the gateway takes, one way after the other."""
    with bare_hops(nats_url) as url:
        async with open_client(url, MODEL, ANSWER_SECONDS) as bare:
            printer.progress(f"{requests} requests each way, one at a time")
            idle = await in_turns({**ways, HOPS: partial(fetch, bare)}, requests)
    rate = await find_capacity(ways[GATEWAY], requests)
    loaded = {}
    for name, ask in ways.items():
        printer.progress(f"{name}: {requests} requests at {LOAD_SHARE * rate:.0f} a second")
        loaded[name] = Latencies(sorted(await open_loop(ask, requests, LOAD_SHARE * rate)))
    return PathLatencies(idle, loaded, OUTPUT_TOKENS * STEP_SECONDS, rate)


async def measure_cpu(
    printer: RecordPrinter, system: BenchSystem, client: LoadClient, requests: int
) -> tuple[dict[str, Cost], Cost]:
    """Measure the CPU time of the processes between client and worker, and of a bare stream at the same pace with the
    same client."""
    printer.progress(f"CPU of {requests} requests with {FEW} and with {MANY} tokens each")
    costs = await measure_costs(system.between(), partial(fetch, client), requests, CONCURRENCY)
    printer.progress("the same of a bare stream")
    gap = max(cost.gap for cost in costs.values())
    with bare_stream(gap) as (url, pid):
        async with open_client(url, MODEL, ANSWER_SECONDS) as bare_client:
            await fetch(bare_client, 0)
            bare = await measure_costs({"bare": pid}, partial(fetch, bare_client), requests, CONCURRENCY)
    return costs, bare["bare"]


def start(launcher: Launcher, checkpoint: Path) -> AbstractAsyncContextManager[BenchSystem]:
    """One instance and a spare worker that stays one, whatever the load."""
    return launcher.start(
        checkpoint,
        {"max_instances": 1, "downscale_delay_s": 3600},
        workers=2,
        dtype="float32",
        share_memory="off",
        keep_parameters=False,  # each scale is to move them
    )


async def first_byte(system: BenchSystem) -> float:
    """Scale out by one and back; seconds from the decision to the first byte at the new worker."""
    await system.allow(2)  # the spare worker too
    record = await system.there_and_back(2)
    return next(phase.at for phase in record.phases if phase.name == "first_byte") - record.decision.at
