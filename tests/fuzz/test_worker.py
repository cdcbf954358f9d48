"""A real worker under hostile messages, whatever it is doing: it goes on with that, and its tokens are right."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.bus.contract import Call, Topic
from livescale.shared.messages.transfers import Drain
from livescale.shared.subjects import (
    ABORT,
    ADMIT,
    CANCEL_WORK,
    DRAIN,
    GIVE_KV,
    HELP,
    LOAD,
    MEETING,
    MOVE_KV,
    PULL,
    RANK_ADAPTER,
    RANK_STEP,
    RANK_TAKE,
    REPLAY,
    RUNNING,
    SEND,
    SERVE,
    STAGE_ADAPTER,
    TOOK,
    WITHDRAW,
)
from tests.fuzz.effort import examples
from tests.fuzz.hostile import Shot, shots, volley
from tests.worker.fleet import Fleet, fleet, undisturbed
from tests.worker.requests import random_prompt, submit

TARGETS: list[Topic[Any] | Call[Any, Any]] = [
    *(ABORT, ADMIT, CANCEL_WORK, DRAIN, LOAD, REPLAY, RUNNING, SEND, SERVE),
    *(HELP, PULL, TOOK, WITHDRAW, MEETING, RANK_STEP, RANK_TAKE, RANK_ADAPTER, MOVE_KV, GIVE_KV, STAGE_ADAPTER),
]
VOLLEYS = st.lists(st.lists(shots(TARGETS, ["w-1"]), min_size=10, max_size=20), min_size=4, max_size=4)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@examples(2)
@given(VOLLEYS)
def test_whatever_is_said_to_it_a_worker_loads_serves_and_drains(volleys: list[list[Shot]]) -> None:
    spare, loading, serving, draining = volleys

    async def main() -> None:
        async with fleet("w-1") as made:
            await volley(made.broker, spare)
            assert made.state("w-1") == "spare"
            await made.load("w-1", made.me)
            await volley(made.broker, loading)
            made.feed("w-1")
            await volley(made.broker, loading)
            await made.whole("w-1")
            assert made.state("w-1") == "loading"
            await made.serve("w-1")
            await ask(made, "first", 1)
            await volley(made.broker, serving)
            assert made.state("w-1") == "serving"
            await ask(made, "second", 2)
            await made.bus.call(DRAIN, Drain(instance="m-w-1", epoch=1), timeout=5, id="w-1")
            await volley(made.broker, draining)
            expected = undisturbed(made, first=1, second=2)
            assert {name: await made.finished(name) for name in expected} == expected
            await made.until(lambda: made.state("w-1") == "spare")

    asyncio.run(main())


async def ask(made: Fleet, name: str, seed: int) -> None:
    await made.admit("w-1", submit(name, random_prompt(seed, 40), max_tokens=24))
