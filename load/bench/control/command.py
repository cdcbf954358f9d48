"""`livescale bench control`: the latency that gateway, router and bus add to the engine's, and the time from a decision
to scale until the first byte."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
import uvloop
from msgspec import structs

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
from livescale.load.bench.losses import Losses, watched_stack
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.samples import BenchFailed, renewable
from livescale.load.bench.scales import there_and_back
from livescale.load.client import LoadClient, open_client
from livescale.load.engine_alone import engine_alone
from livescale.load.kept import kept_model, logged
from livescale.services.supervisor.commands import NATS
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.processes import Echo
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Stack
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.registry import AskModels, Register
from livescale.shared.subjects import MODELS, REGISTER

LOAD_SHARE = 0.7
ANSWER_SECONDS = 60.0
BETWEEN = {"gateway": "gateway-0", "router": "router-0", "bus": NATS}


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
    try:
        with logged() as echo:
            uvloop.run(run(printer, checkpoint, requests, scales, echo))
    except BenchFailed as error:
        raise click.ClickException(str(error)) from None
    if not printer.finish():
        sys.exit(1)


async def run(printer: RecordPrinter, checkpoint: Path, requests: int, scales: int, echo: Echo) -> None:
    make = partial(watched_stack, stack_settings(checkpoint), printer.progress, echo)
    async with renewable(make) as stacks, engine_alone(checkpoint, "float32") as engine:
        stack, _ = stacks.now
        async with open_client(stack.url, MODEL, ANSWER_SECONDS) as client:
            ways = {GATEWAY: partial(fetch, client), ENGINE: partial(ask_engine, engine)}
            latencies = await measure_latencies(printer, stack, ways, requests)
            costs, bare = await measure_cpu(printer, stack, client, requests)
        firsts = []
        for number in range(scales):
            printer.progress(f"scale {number + 1} of {scales}")
            firsts.append(await printer.samples.take_async(lambda: first_byte(*stacks.now), stacks.renew))
    for record in (*rows(latencies, firsts), *cost_rows(costs, bare)):
        printer.emit(record)


async def measure_latencies(
    printer: RecordPrinter, stack: Stack, ways: Mapping[str, AskOnce], requests: int
) -> PathLatencies:
    """Idle in turns, also over bare processes; then under 70 % of what the gateway takes, one way after the other."""
    with bare_hops(stack.nats_url) as url:
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
    printer: RecordPrinter, stack: Stack, client: LoadClient, requests: int
) -> tuple[dict[str, Cost], Cost]:
    """Measure the CPU time of the processes between client and worker, and of a bare stream at the same pace with the
    same client."""
    printer.progress(f"CPU of {requests} requests with {FEW} and with {MANY} tokens each")
    children = stack.supervisor.children
    pids = {name: children[child].pid or 0 for name, child in BETWEEN.items()}
    costs = await measure_costs(pids, partial(fetch, client), requests, CONCURRENCY)
    printer.progress("the same of a bare stream")
    gap = max(cost.gap for cost in costs.values())
    with bare_stream(gap) as (url, pid):
        async with open_client(url, MODEL, ANSWER_SECONDS) as bare_client:
            await fetch(bare_client, 0)
            bare = await measure_costs({"bare": pid}, partial(fetch, bare_client), requests, CONCURRENCY)
    return costs, bare["bare"]


def stack_settings(checkpoint: Path) -> StackSettings:
    """One instance and a spare worker that stays one, whatever the load."""
    model = ModelSettings(name=MODEL, path=str(checkpoint), max_instances=1, downscale_delay_s=3600)
    return StackSettings(
        models=(model,),
        workers=2,
        port=0,
        device="cpu",
        dtype="float32",
        share_memory="off",
        keep_parameters=False,  # each scale is to move them
    )


async def allow_two(bus: Bus) -> None:
    """Let the model have the spare worker too."""
    models = await bus.call(MODELS, AskModels(), timeout=5.0)
    spec = structs.replace(models.models[0].spec, max_instances=2)
    await bus.call(REGISTER, Register(spec=spec), timeout=5.0)


async def first_byte(stack: Stack, losses: Losses) -> float:
    """Scale out by one and back; seconds from the decision to the first byte at the new worker."""
    await allow_two(stack.bus)
    record = await losses.over(partial(there_and_back, stack.bus, MODEL, 2))
    return next(phase.at for phase in record.phases if phase.name == "first_byte") - record.decision.at
