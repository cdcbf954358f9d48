"""No request pauses for long while a pipeline ends, and others go on."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from math import inf

import pytest

from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.pipeline.filling import FILL_ROWS
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.requests import TokenFrame
from livescale.shared.model.latency import Latency, Work
from livescale.shared.runtime.settings import SwitchKv
from livescale.shared.subjects import TOKENS
from tests.worker.live.engines import CLOCK, ModelledKind
from tests.worker.live.pool import WorkerPool
from tests.worker.pipeline.pipelines import ask, has_tokens, whole, with_pipeline

LONG = 100
SLOW = Latency(source="made up", prefill=(10.0, 2.0, 0.0), decode=(10.0, 1.0, 0.0))


def slow(told: WorkerSettings) -> ModelledRunner:
    return ModelledRunner(4 * MIB, told.block_size, SLOW, 1.0, CLOCK)


@asynccontextmanager
async def timed_tokens(pool: WorkerPool) -> AsyncIterator[dict[str, list[float]]]:
    """Return when the tokens of each request came."""
    came: dict[str, list[float]] = defaultdict(list)

    async def follow() -> None:
        async for received in await pool.bus.subscribe(TOKENS):
            for row in received.message.rows if isinstance(received.message, TokenFrame) else ():
                came[row.request_id] += [CLOCK.now()] * bool(row.token_ids)

    following = asyncio.create_task(follow())
    yield came
    following.cancel()


def longest_pause(came: Mapping[str, Sequence[float]], begun: float, over: float = inf) -> float:
    """The longest of the pauses that fall into this time, at least in part."""
    pairs = (pair for times in came.values() for pair in pairwise(times))
    return max(after - before for before, after in pairs if after > begun and before < over)


@pytest.mark.parametrize(("switch_kv", "again"), [("recompute", 2), ("move", 0)])
def test_only_requests_whose_kv_is_computed_again_pause_as_a_pipeline_ends(switch_kv: SwitchKv, again: int) -> None:
    """These pause for no longer than the rows of all of them take. Where KV is moved there are none."""

    async def act(pool: WorkerPool) -> None:
        async with timed_tokens(pool) as came:
            await ask(pool, 4, tokens=20, prompt=LONG)
            await whole(pool, "a", "b")
            await has_tokens(pool, 3)
            begun = CLOCK.now()
            await pool.serve("a")
            await pool.serve("b")
            await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        one, all_rows = (SLOW.seconds(Work(prefill_tokens=tokens)) for tokens in (LONG, again * FILL_ROWS))
        pauses = sorted(longest_pause({name: times}, begun) for name, times in came.items())
        assert len(pauses) == 4
        assert pauses[3 - again] < one / 2
        assert again == 0 or one < pauses[3] < all_rows

    with_pipeline(act, kind=ModelledKind(make_runner=slow, switch_kv=switch_kv))


@pytest.mark.parametrize("switch_kv", ["recompute", "move"])
def test_in_a_pipeline_nobody_pauses_for_the_prompts_of_others(switch_kv: SwitchKv) -> None:
    """They take turns with decodes, and with what is filled, until its leader serves by itself."""

    async def act(pool: WorkerPool) -> None:
        async with timed_tokens(pool) as came:
            await ask(pool, 2, tokens=200, prompt=200)
            await whole(pool, "a", "b")
            await pool.until(lambda: all(len(wish.tokens) >= 5 for wish in pool.client.wishes))
            begun = CLOCK.now()
            await ask(pool, 2, tokens=20, prompt=400)
            await asyncio.sleep(0.1)
            await pool.serve("a")
            over = CLOCK.now()
            await pool.serve("b")
            await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        pause = longest_pause(came, begun, over)
        filled, others = (SLOW.seconds(Work(prefill_tokens=tokens)) for tokens in (FILL_ROWS, 400))
        assert pause < (filled + 0.05 if switch_kv == "recompute" else 0.05) < others / 2, "of two stages"

    with_pipeline(act, kind=ModelledKind(make_runner=slow, switch_kv=switch_kv), kv_blocks=128)
