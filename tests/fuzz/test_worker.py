"""A real worker under hostile messages: it refuses them, stays spare, and loads and serves afterwards."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.contract import Call, Topic
from shared.subjects import ABORT, ADMIT, CANCEL_WORK, DRAIN, LOAD, REPLAY, SEND, SERVE
from tests.fuzz.effort import examples
from tests.fuzz.hostile import Shot, codes, fire, shots
from tests.worker.fleet import fleet

TARGETS: list[Topic[Any] | Call[Any, Any]] = [ABORT, ADMIT, CANCEL_WORK, DRAIN, LOAD, REPLAY, SEND, SERVE]


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@examples(3)
@given(st.lists(shots(TARGETS, ["w-1"]), min_size=30, max_size=60))
def test_whatever_is_said_to_it_a_worker_stays_spare_and_of_use(fired: list[Shot]) -> None:
    async def main() -> None:
        async with fleet("w-1") as made:
            answers = [fire(made.broker, shot) for shot in fired]
            async with asyncio.timeout(20):
                while not all(answer for shot, answer in zip(fired, answers, strict=True) if shot.answered):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert "500" not in codes(answers)
            assert made.state("w-1") == "spare"
            await made.load("w-1", made.me)
            made.feed("w-1")
            await made.whole("w-1")
            await made.serve("w-1")

    asyncio.run(main())
