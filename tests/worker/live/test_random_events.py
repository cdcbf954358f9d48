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
from tests.worker.live.kinds import BFLOAT16, BLOCKS, CLOCK, FLOAT32, Kind
from tests.worker.live.members import check_invariants
from tests.worker.live.stage import Stage, late, stage
from tests.worker.serving import NEVER, random_prompt, submit

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
    events: list[Event], mode: LiveMode, blocks: int, kind: Kind, seed: int | None
) -> None:
    run(play(events, mode, blocks, kind, seed), limit_seconds=600)


# In a full cache those that came last lose their place.
RANKS = [Kind(dtype, ranks=2, kv_bytes=kv) for dtype in ("float32", "bfloat16") for kv in (MIB, MIB // 3)]


@examples(3)
@given(
    events=events(*ORDINARY * 15, *RARE, *OF_RANKS),
    mode=MODES,
    blocks=st.integers(1, BLOCKS - 1),
    kind=st.sampled_from(RANKS),
    seed=SEEDS,
)
def test_every_request_ends_once_with_the_tokens_of_undisturbed_ranks(
    events: list[Event], mode: LiveMode, blocks: int, kind: Kind, seed: int | None
) -> None:
    run(play(events, mode, blocks, kind, seed), limit_seconds=600)


async def play(events: list[Event], mode: LiveMode, blocks: int, kind: Kind, seed: int | None) -> None:
    """Two sources and a target; another instance serves without helping, so that there is always somebody. Where there
    is a `seed` messages are late by chance."""
    async with stage("other", *SOURCES, "t", kind=kind) as made:
        for instance in ("other", *SOURCES):
            await made.loaded(instance)
        await made.load("t", list(range(blocks)), mode)
        if seed is not None:
            made.broker.delays = late(seed)
        for event in events:
            await asyncio.sleep(event.wait)
            happen(made, event, mode)
            check_invariants(made.members.values())
        made.faults.messages = made.faults.damaged = None
        for rank in range(kind.ranks):
            await next_blocks(made, mode, BLOCKS, rank)
        await made.until(lambda: made.state("t") in ("spare", "absent") or made.ready("t") == BLOCKS)
        if made.state("t") == "live":
            await made.serve("t")
        await made.done()


def happen(made: Stage, event: Event, mode: LiveMode) -> None:
    wishes, source = made.client.wishes, SOURCES[event.which % 2]
    match event.what.split():
        case ["ask", who]:
            made.act(made.client.submit(request(len(wishes), event.which), who))
        case ["block"]:
            made.act(next_blocks(made, mode, 1, event.which % made.kind.ranks))
        case ["cancel"] if wishes:
            made.client.cancel(wishes[event.which % len(wishes)])
        case ["help"] if made.state(source) == "serving":
            made.act(made.help(source, "t"))
        case ["stop", _] if made.state(source) == "serving":
            made.act(made.help(source))
        case ["lose", _]:
            made.faults.messages = event.which % 6
        case ["damage"]:
            made.faults.messages, made.faults.damaged = None, event.which % 2
        case [what, who] if who in made.members:
            happen_to(made, what, who)


def happen_to(made: Stage, what: str, who: str) -> None:
    match what:
        case "kill":
            made.act(made.kill(who))
        case "fence":
            made.fence(who)
        case "abort":
            made.act(made.abort(who))
        case "drain" if made.state(who) == "serving":
            made.act(made.drain(who))
        case "serve" if made.kind.ranks == 1 or made.ready(who) == BLOCKS:  # a rank does not know what others lack
            made.act(made.serve(who))


def request(number: int, which: int) -> Submit:
    sampling = Sampling(temperature=0.8 * (which % 2), seed=which)
    prompt, deadline = random_prompt(which, 1 + which % 180), NEVER if which % 8 else CLOCK.wall() + which / 2_000
    tokens = 1 + which % 7 if which % 9 else 40
    return submit(f"r{number}", prompt, max_tokens=tokens, sampling=sampling, deadline=deadline)


async def next_blocks(made: Stage, mode: LiveMode, count: int, rank: int) -> None:
    have = len(made.loads.given[made.ranks("t")[rank]])
    with suppress(BusError):  # it was killed, or told to stop
        await made.load("t", list(range(have, min(have + count, BLOCKS))), mode, ranks=[rank])
