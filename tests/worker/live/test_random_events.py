"""Whatever happens in whatever order: every request ends once, with its tokens, and nothing is left of it anywhere."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.settings import MIB
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.requests import Sampling, Submit
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.simulation.virtual_time import run
from tests.fuzz.effort import examples
from tests.worker.live.engines import BFLOAT16, BLOCKS, CLOCK, FLOAT32, EngineKind
from tests.worker.live.members import check_invariants
from tests.worker.live.pool import WorkerPool, late, worker_pool
from tests.worker.requests import NEVER, penalised, random_prompt, submit

SOURCES = ("s1", "s2")


@dataclass(frozen=True)
class Event:
    """`wait` seconds after the one before; `which` chooses among what there is."""

    what: str
    wait: float
    which: int


WAITS = st.sampled_from((0.0, 0.001, 0.003, 0.005, 0.01, 0.012, 0.02, 0.05))
ORDINARY = ("ask t", "ask t", "ask t", "ask s1", "ask s2", "block", "cancel", "help", "help", "stop helping")
RARE = ("kill t", "kill s1", "kill s2", "abort t", "drain s1", "serve t")
OF_RANKS = ("kill t.1", "kill s1.1", "fence t", "fence t.1", "fence s1", "fence s1.1", "lose messages", "damage")
SEEDS = st.none() | st.integers(0, 2**16)
MODES = st.sampled_from(("zigzag", "zigzag", "best-effort", "zigzag-ilp"))


def events(*what: str) -> st.SearchStrategy[list[Event]]:
    return st.lists(st.builds(Event, st.sampled_from(what), WAITS, st.integers(0, 1_000)), min_size=20, max_size=40)


@examples(6)
@given(
    events=events(*ORDINARY * 20, *RARE),
    mode=MODES,
    blocks=st.integers(2, BLOCKS - 1),
    kind=st.sampled_from((FLOAT32, BFLOAT16)),
    seed=SEEDS,
)
def test_every_request_ends_once_with_its_tokens(
    events: list[Event], mode: LiveMode, blocks: int, kind: EngineKind, seed: int | None
) -> None:
    run(play(events, mode, blocks, kind, seed), limit_seconds=600)


# In a full cache those that came last lose their place.
RANKS = [EngineKind(dtype, ranks=2, kv_bytes=kv) for dtype in ("float32", "bfloat16") for kv in (MIB, MIB // 3)]


@examples(2)  # of some seconds each
@given(
    events=events(*ORDINARY * 15, *RARE, *OF_RANKS),
    mode=MODES,
    blocks=st.integers(1, BLOCKS - 1),
    kind=st.sampled_from(RANKS),
    seed=SEEDS,
)
def test_every_request_ends_once_with_the_tokens_of_undisturbed_ranks(
    events: list[Event], mode: LiveMode, blocks: int, kind: EngineKind, seed: int | None
) -> None:
    run(play(events, mode, blocks, kind, seed), limit_seconds=600)


async def play(events: list[Event], mode: LiveMode, blocks: int, kind: EngineKind, seed: int | None) -> None:
    """Play two sources and a target. Another instance serves without helping, so that one is always there. With a
    `seed` messages are late by chance."""
    async with worker_pool("other", *SOURCES, "t", kind=kind) as pool:
        for instance in ("other", *SOURCES):
            await pool.loaded(instance)
        await pool.load("t", list(range(blocks)), mode)
        if seed is not None:
            pool.broker.delays = late(seed)
        for event in events:
            await asyncio.sleep(event.wait)
            happen(pool, event, mode)
            check_invariants(pool.members.values())
        pool.faults.messages = pool.faults.damaged = None
        for rank in range(kind.ranks):
            await next_blocks(pool, mode, BLOCKS, rank)
        await pool.until(lambda: pool.state("t") in ("spare", "absent") or pool.ready("t") == BLOCKS)
        if pool.state("t") == "live":
            await pool.serve("t")
        await pool.done()


def happen(pool: WorkerPool, event: Event, mode: LiveMode) -> None:
    wishes, source = pool.client.wishes, SOURCES[event.which % 2]
    match event.what.split():
        case ["ask", who]:
            pool.act(pool.client.submit(request(len(wishes), event.which), who))
        case ["block"]:
            pool.act(next_blocks(pool, mode, 1, event.which % pool.kind.ranks))
        case ["cancel"] if wishes:
            pool.client.cancel(wishes[event.which % len(wishes)])
        case ["help"] if pool.state(source) == "serving":
            pool.act(pool.help(source, "t"))
        case ["stop", _] if pool.state(source) == "serving":
            pool.act(pool.help(source))
        case ["lose", _]:
            pool.faults.messages = event.which % 6
        case ["damage"]:
            pool.faults.messages, pool.faults.damaged = None, event.which % 2
        case [what, who] if who in pool.members:
            happen_to(pool, what, who)


def happen_to(pool: WorkerPool, what: str, who: str) -> None:
    match what:
        case "kill":
            pool.act(pool.kill(who))
        case "fence":
            pool.fence(who)
        case "abort":
            pool.act(pool.abort(who))
        case "drain" if pool.state(who) == "serving":
            pool.act(pool.drain(who))
        case "serve" if pool.kind.ranks == 1 or pool.ready(who) == BLOCKS:  # a rank does not know what others lack
            pool.act(pool.serve(who))


def request(number: int, which: int) -> Submit:
    sampling = penalised(which) if which % 3 == 2 else Sampling(temperature=0.8 * (which % 2), seed=which)
    prompt, deadline = random_prompt(which, 1 + which % 180), NEVER if which % 8 else CLOCK.wall() + which / 2_000
    tokens = 1 + which % 7 if which % 9 else 40
    return submit(f"r{number}", prompt, max_tokens=tokens, sampling=sampling, deadline=deadline)


async def next_blocks(pool: WorkerPool, mode: LiveMode, count: int, rank: int) -> None:
    have = len(pool.loads.given[pool.ranks("t")[rank]])
    with suppress(BusError):  # it was killed, or told to stop
        await pool.load("t", list(range(have, min(have + count, BLOCKS))), mode, ranks=[rank])
