"""Whatever happens in whatever order: every request ends once, with its tokens, and nothing is left of any pipeline."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.bus.contract import BusError
from livescale.shared.runtime.settings import SwitchKv
from livescale.shared.simulation.virtual_time import run
from tests.fuzz.effort import examples
from tests.worker.live.engines import BFLOAT16, BLOCKS, FLOAT32, MODELLED, EngineKind
from tests.worker.live.members import check_invariants
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.pipeline.pipelines import WORKERS, Cut, form, loaded, nothing_left, request, say_over


@dataclass(frozen=True)
class Event:
    """`wait` seconds after the one before; `which` chooses among what there is."""

    what: str
    wait: float
    which: int


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """Generate stages: neighbours are of different workers, and the first is of "a"."""
    stops = sorted(draw(st.sets(st.integers(1, BLOCKS - 1), min_size=1, max_size=BLOCKS - 1)))
    workers = ["a"]
    for _ in stops:
        workers.append(draw(st.sampled_from([one for one in WORKERS if one != workers[-1]])))
    return tuple(zip(workers, [*stops, BLOCKS], strict=True))


WAITS = st.sampled_from((0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1))
ORDINARY = ("ask a", "ask a", "ask a", "ask other", "cancel", "block", "whole", "form", "serve a", "serve b", "serve c")
RARE = ("kill a", "kill b", "kill c", "abort a", "abort b", "over", "break", "drain a")
EVENTS = st.lists(
    st.builds(Event, st.sampled_from((*ORDINARY * 3, *RARE)), WAITS, st.integers(0, 1_000)), min_size=15, max_size=40
)


WAYS = st.sampled_from(("move", "recompute"))


@examples(8)
@given(events=EVENTS, cut=cuts(), way=WAYS)
def test_every_request_ends_once_with_its_tokens(events: list[Event], cut: Cut, way: SwitchKv) -> None:
    run(play(events, cut, replace(MODELLED, switch_kv=way)), limit_seconds=600)


@pytest.mark.slow
@examples(20)
@given(events=EVENTS, cut=cuts(), kind=st.sampled_from((FLOAT32, BFLOAT16)), way=WAYS)
def test_every_request_ends_once_with_the_tokens_of_an_undisturbed_engine(
    events: list[Event], cut: Cut, kind: EngineKind, way: SwitchKv
) -> None:
    run(play(events, cut, replace(kind, switch_kv=way)), limit_seconds=600)


async def play(events: list[Event], cut: Cut, kind: EngineKind) -> None:
    """Play a pipeline, and a worker that serves by itself, so that one is always there."""
    async with worker_pool("other", *WORKERS, kind=kind) as pool:
        await pool.loaded("other")
        await loaded(pool, cut)
        await form(pool, cut)
        for number, event in enumerate(events):
            await asyncio.sleep(event.wait)
            happen(pool, event, cut, number)
            check_invariants(pool.members.values())
        pool.faults.messages = None
        for worker in sorted({worker for worker, _ in cut}):
            await to_the_end(pool, worker)
        await pool.done()
        await nothing_left(pool)


def happen(pool: WorkerPool, event: Event, cut: Cut, number: int) -> None:
    wishes, members = pool.client.wishes, {worker for worker, _ in cut}
    match event.what.split():
        case ["ask", who]:
            pool.act(pool.client.submit(request(len(wishes), 1 + event.which % 30), who))
        case ["cancel"] if wishes:
            pool.client.cancel(wishes[event.which % len(wishes)])
        case ["block"]:
            pool.act(next_block(pool, sorted(members)[event.which % len(members)]))
        case ["whole"]:
            for worker in sorted(members & pool.members.keys()):
                pool.act(all_blocks(pool, worker))
        case ["form"]:
            pool.act(formed(pool, cut, f"p{number}"))
        case ["over"]:
            say_over(pool, cut)
        case ["break"]:
            pool.faults.messages = event.which % 20
        case [command, who] if who in members & pool.members.keys():
            command_one(pool, command, who)


def command_one(pool: WorkerPool, command: str, worker: str) -> None:
    match command:
        case "serve":
            pool.act(pool.serve(worker))
        case "kill":
            pool.act(pool.kill(worker))
        case "abort":
            pool.act(pool.abort(worker))
        case "drain" if pool.state(worker) == "serving":
            pool.act(pool.drain(worker))


async def formed(pool: WorkerPool, cut: Cut, id: str) -> None:
    with suppress(BusError):  # workers refuse it that run one, serve, or are gone
        await form(pool, cut, id)


async def next_block(pool: WorkerPool, worker: str) -> None:
    missing = [block for block in range(BLOCKS) if block not in pool.loads.given[worker]]
    with suppress(BusError):  # it was killed, or told to stop
        await pool.load(worker, missing[:1], "pipeline")


async def all_blocks(pool: WorkerPool, worker: str) -> None:
    with suppress(BusError):
        await pool.load(worker, list(range(BLOCKS)), "pipeline")


async def to_the_end(pool: WorkerPool, worker: str) -> None:
    """Have all blocks arrive and the worker serve."""
    for _ in range(BLOCKS):
        await next_block(pool, worker)
    await pool.until(lambda: pool.state(worker) in ("spare", "absent") or pool.ready(worker) == BLOCKS)
    if pool.state(worker) in ("loading", "live"):
        await pool.serve(worker)
