"""Which pipelines a worker takes part in."""

from typing import Any

import pytest
from msgspec.structs import replace

from livescale.services.worker.pipeline.wire import check_pipeline
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.model_parallel import Pipeline, Stage, StageBatch, StageDone
from livescale.shared.messages.transfers import Node
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import STAGE_BATCH, STAGE_DONE
from tests.worker.engine.made_up import LAYERS, manifest
from tests.worker.live.engines import MODELLED
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.pipeline.pipelines import PAIR, ask, command, say_over, tell, with_pipeline

MANIFEST = manifest()
LAST = LAYERS + 2


def pipeline(*cut: tuple[str, int, int], **fields: Any) -> Pipeline:
    stages = [
        Stage(node=Node(id=worker, place="worker", address=b""), first=first, stop=stop) for worker, first, stop in cut
    ]
    defaults = {"id": "p", "plan_id": "plan", "model": "m", "version": "v1", "kv_blocks": 8, "epoch": 1}
    return Pipeline(stages=stages, **{**defaults, **fields})


GOOD = pipeline(("a", 0, 2), ("b", 2, LAST))


def test_a_worker_that_has_its_blocks_takes_part() -> None:
    check_pipeline(GOOD, "a", MANIFEST, {0, 1}, 8)
    check_pipeline(GOOD, "b", MANIFEST, range(2, LAST), 9)


@pytest.mark.parametrize(
    ("wrong", "code", "reason"),
    [
        (replace(GOOD, version="v2"), 409, "version: this worker loads v1, not v2"),
        (pipeline(("a", 0, 2), ("b", 3, LAST)), 400, "stages: they begin at"),
        (pipeline(("a", 1, 2), ("b", 2, LAST)), 400, "stages: they begin at"),
        (pipeline(("a", 0, 2), ("b", 2, LAST - 1)), 400, "stages: they begin at"),
        (pipeline(("a", 0, 2), ("b", 2, 2), ("a", 2, LAST)), 400, "stages: they begin at"),
        (pipeline(("a", 0, 1), ("a", 1, LAST)), 400, "two neighbours are of one worker"),
        (pipeline(("a", 0, LAST)), 400, "stages: 1 of them"),
        (pipeline(("c", 0, 2), ("b", 2, LAST)), 400, "0 of a"),
        (pipeline(("a", 0, 3), ("b", 3, LAST)), 409, "stages: block 2 is not ready here"),
        (replace(GOOD, kv_blocks=9), 409, "kv_blocks: there are 8 here, not 9"),
    ],
)
def test_what_is_no_pipeline_of_what_is_here_is_refused(wrong: Pipeline, code: int, reason: str) -> None:
    with pytest.raises(Refusal, match=reason) as refusal:
        check_pipeline(wrong, "a", MANIFEST, {0, 1}, 8)
    assert refusal.value.code == code


def test_a_tied_head_needs_the_embedding() -> None:
    tied = replace(MANIFEST, config=replace(MANIFEST.config, tie_word_embeddings=True))
    with pytest.raises(Refusal, match="block 0 is not ready"):
        check_pipeline(GOOD, "b", tied, range(2, LAST), 8)
    check_pipeline(GOOD, "b", tied, {0, *range(2, LAST)}, 8)


def test_a_worker_takes_part_in_one_pipeline_and_only_while_it_loads_for_its_plan() -> None:
    async def main() -> None:
        async with worker_pool("a", "b", kind=MODELLED) as pool:
            await pool.loaded("b")
            await pool.load("a", [0, 1], "pipeline")
            await pool.until(lambda: pool.ready("a") == 2)
            told = command(pool, PAIR)
            for worker, change in (("b", {}), ("a", {"plan_id": "another"}), ("a", {"epoch": 2})):
                with pytest.raises(Refusal) as refusal:
                    await tell(pool, worker, told, **change)
                assert refusal.value.code == 409
            await tell(pool, "a", told)
            await tell(pool, "a", told)
            with pytest.raises(Refusal, match="stages of p1 are still run here"):
                await tell(pool, "a", replace(told, id="p2"))
            say_over(pool)
            await pool.until(lambda: pool.reports["a"].pipeline is None)
            await pool.done()

    run(main(), limit_seconds=600)


BAD = StageBatch(pipeline="p1", stage=1, step=1, block_tokens=16, pieces=[], activation_bytes=9)


@pytest.mark.parametrize("bad", [BAD, replace(BAD, stage=7), replace(BAD, step=2**40)])
def test_a_batch_that_cannot_be_ends_a_pipeline_and_its_requests_go_on(bad: StageBatch) -> None:
    async def act(pool: WorkerPool) -> None:
        pool.bus.publish(STAGE_BATCH, replace(bad, pipeline="another"), id="b")
        await ask(pool, 2, tokens=1)
        assert pool.state("a") == "live"
        pool.bus.publish(STAGE_BATCH, bad, id="b")
        await ask(pool, 3, tokens=20)
        await pool.until(lambda: pool.count("a", "broken_pipelines") == 1)

    with_pipeline(act, PAIR, "other", kind=MODELLED)


@pytest.mark.parametrize("tokens", [[], [2**40], [1, 2, 3, 4]])
def test_tokens_that_are_not_due_end_a_pipeline_and_those_of_no_step_are_nothing_to_it(tokens: list[int]) -> None:
    async def act(pool: WorkerPool) -> None:
        pool.bus.publish(STAGE_DONE, StageDone(pipeline="p1", step=1, tokens=tokens), id="a")
        await ask(pool, 1, tokens=20)
        await pool.until(lambda: len(pool.client.wishes[0].tokens) == 3)
        assert pool.count("a", "broken_pipelines") == 0
        for step in range(1, 40):
            pool.bus.publish(STAGE_DONE, StageDone(pipeline="p1", step=step, tokens=tokens), id="a")
        await pool.until(lambda: pool.count("a", "broken_pipelines") == 1)

    with_pipeline(act, PAIR, "other", kind=MODELLED)
