"""Orders to move KV that cannot be carried out, or not any more, are refused at once."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.model_parallel import KvSpan, MoveKv
from livescale.shared.subjects import GIVE_KV, MOVE_KV
from tests.worker.live.engines import FLOAT32, MODELLED
from tests.worker.live.pool import WorkerPool
from tests.worker.pipeline.pipelines import ask, say_over, with_pipeline

ORDER = MoveKv(pipeline="p1", number=1, worker="b", spans=[KvSpan(first_block=0, blocks=2, start=0, stop=20)])


async def refused(pool: WorkerPool, **changes: Any) -> None:
    reason, at = changes.pop("reason"), changes.pop("at", "b")
    for call in (MOVE_KV, GIVE_KV):
        with pytest.raises(Refusal, match=reason):
            await pool.bus.call(call, replace(ORDER, **changes), timeout=5, id=at)


def test_what_cannot_be_moved_is_refused_and_the_pipeline_runs_on() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 2)
        await refused(pool, worker="x", reason="400: worker: x is none of p1")
        await refused(pool, spans=[], reason="400: spans: they have 0 positions")
        far = KvSpan(first_block=31, blocks=2, start=0, stop=20)
        await refused(pool, spans=[far], reason=r"400: .* do not fit into blocks 31 \.\. 32 of 32")
        await refused(pool, pipeline="p2", reason="409: no stage of p2 is run here")
        await refused(pool, at="other", reason="409: no stage of p1 is run here")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert pool.state("a") == "live"
        say_over(pool)
        await pool.until(lambda: pool.reports["b"].pipeline is None)
        await refused(pool, reason="409: no stage of p1 is run here")

    with_pipeline(act, (("a", 2), ("b", 5)), "other", kind=MODELLED)


def test_a_worker_that_computes_faster_says_so() -> None:
    async def act(pool: WorkerPool) -> None:
        with pytest.raises(Refusal, match="409: recompute is set"):
            await pool.bus.call(MOVE_KV, ORDER, timeout=5, id="b")
        assert pool.count("b", "pipeline_lost_kv") == 0
        say_over(pool)

    with_pipeline(act, kind=dataclasses.replace(MODELLED, switch_kv="recompute"))


def test_what_a_worker_does_not_send_is_told_in_time_and_the_pipeline_runs_on() -> None:
    async def act(pool: WorkerPool) -> None:
        pool.members["a"].bus.hold()
        with pytest.raises(Refusal, match=r"409: .*did not answer within 1 s"):
            await pool.bus.call(MOVE_KV, ORDER, timeout=5, id="b")
        pool.members["a"].bus.release()
        assert pool.count("b", "pipeline_lost_kv") == 1
        await ask(pool, 2)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert pool.state("a") == "live"
        say_over(pool)

    with_pipeline(act, kind=dataclasses.replace(FLOAT32, switch_kv="move"))
