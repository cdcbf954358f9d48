"""Whatever happens in whatever order: every request ends once, with its tokens, and nothing is left of it anywhere."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from shared.bus.contract import BusError
from shared.messages.requests import Sampling, Submit
from shared.messages.transfers import LiveMode
from shared.virtual_time import run
from tests.fuzz.effort import examples
from tests.worker.live.kinds import BFLOAT16, BLOCKS, FLOAT32, Kind
from tests.worker.live.stage import Stage, stage
from tests.worker.serving import random_prompt, submit

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
EVENTS = st.lists(
    st.builds(Event, st.sampled_from((*ORDINARY * 20, *RARE)), WAITS, st.integers(0, 1_000)), min_size=20, max_size=40
)


@examples(10)
@given(
    events=EVENTS,
    mode=st.sampled_from(("zigzag", "zigzag", "best-effort", "zigzag-ilp")),
    blocks=st.integers(2, BLOCKS - 1),
    kind=st.sampled_from((FLOAT32, BFLOAT16)),
)
def test_every_request_ends_once_with_its_tokens(events: list[Event], mode: LiveMode, blocks: int, kind: Kind) -> None:
    run(play(events, mode, blocks, kind), limit_seconds=600)


async def play(events: list[Event], mode: LiveMode, blocks: int, kind: Kind) -> None:
    """Two sources and a target; another worker serves without helping, so that there is always somebody."""
    async with stage("other", *SOURCES, "t", kind=kind) as made:
        for worker in ("other", *SOURCES):
            await made.loaded(worker)
        await made.load("t", list(range(blocks)), mode)
        for event in events:
            await asyncio.sleep(event.wait)
            happen(made, event, mode)
            made.check_invariants()
        await next_blocks(made, mode, BLOCKS)
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
            made.act(next_blocks(made, mode, 1))
        case ["cancel"] if wishes:
            made.client.cancel(wishes[event.which % len(wishes)])
        case ["help"] if made.state(source) == "serving":
            made.act(made.help(source, "t"))
        case ["stop", _] if made.state(source) == "serving":
            made.act(made.help(source))
        case ["kill", who] if who in made.members:
            made.act(made.kill(who))
        case ["abort", who] if who in made.members:
            made.act(made.abort(who))
        case ["drain", who] if made.state(who) == "serving":
            made.act(made.drain(who))
        case ["serve", who] if who in made.members:
            made.act(made.serve(who))


def request(number: int, which: int) -> Submit:
    sampling = Sampling(temperature=0.8 * (which % 2), seed=which)
    return submit(f"r{number}", random_prompt(which, 1 + which % 180), max_tokens=1 + which % 7, sampling=sampling)


async def next_blocks(made: Stage, mode: LiveMode, count: int) -> None:
    have = len(made.given["t"])
    with suppress(BusError):  # it was killed, or told to stop
        await made.load("t", list(range(have, min(have + count, BLOCKS))), mode)
