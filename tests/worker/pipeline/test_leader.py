"""Workers that hold a model between them serve it."""

import pytest
from msgspec.structs import replace

from livescale.shared.messages.requests import PromptLogprobs
from tests.worker.live.engines import BFLOAT16, BLOCKS, FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool
from tests.worker.pipeline.pipelines import PAIR, Cut, ask, request, whole, with_pipeline

CUTS: tuple[Cut, ...] = (
    PAIR,
    (("a", 1), ("b", 4), ("c", BLOCKS)),
    (("a", 2), ("b", 3), ("a", 4), ("b", BLOCKS)),
    (("a", 2), ("b", 4), ("a", BLOCKS)),
)


async def served(pool: WorkerPool, workers: set[str]) -> None:
    await ask(pool, 6)
    await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
    await whole(pool, *sorted(workers))
    for worker in sorted(workers):
        await pool.serve(worker)


@pytest.mark.parametrize("kind", [MODELLED, BFLOAT16])
def test_a_pipeline_tells_of_a_prompt_what_one_instance_tells(kind: EngineKind) -> None:
    asked = replace(request(2, prompt=180), prompt_logprobs=PromptLogprobs(top=1))

    async def act(pool: WorkerPool) -> None:
        await pool.client.submit(asked, "a")
        await pool.client.submit(replace(asked, request_id="other"), "d")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert pool.count("a", "pipeline_steps") > 0
        first, other = pool.client.wishes
        assert len(first.prompt_logprobs) == 179
        assert first.prompt_logprobs == other.prompt_logprobs
        await whole(pool, "a", "b")
        for worker in ("a", "b"):
            await pool.serve(worker)

    with_pipeline(act, PAIR, "d", kind=kind)


@pytest.mark.parametrize(
    ("kind", "cut"),
    [*((MODELLED, cut) for cut in CUTS), (FLOAT32, CUTS[2]), (BFLOAT16, CUTS[1])],
)
def test_a_pipeline_makes_the_tokens_of_one_instance(cut: Cut, kind: EngineKind) -> None:
    workers = {worker for worker, _ in cut}

    async def act(pool: WorkerPool) -> None:
        await served(pool, workers)
        assert pool.count("a", "pipeline_steps") >= 8
        assert all(pool.count(worker, "pipeline_bytes") > 0 for worker in workers - {"a"})

    with_pipeline(act, cut, kind=kind)
