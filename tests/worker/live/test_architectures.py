"""Every architecture that generates, where what it keeps of a token goes from worker to worker: in a live scale, in a
pipeline and from prefill to decode, deaths included. Prompts are longer than windows.

Tokens and their likelihoods are those of one instance that nothing disturbs. What else a system does with a model does
not know its architecture: it sees blocks, and bytes of KV.
"""

import pytest

from livescale.shared.messages.requests import Sampling
from livescale.shared.model.architectures import find_architecture, model_types
from tests.worker.disaggregation.pairs import taken, with_pair
from tests.worker.live.engines import BLOCKS, EngineKind
from tests.worker.live.live_scale import parked, with_live_scale
from tests.worker.live.pool import WorkerPool
from tests.worker.pipeline.pipelines import running, whole
from tests.worker.requests import random_prompt, submit

# Unlike the rest in what is kept or computed of a token: positions and biases; limits of scores and windows; sinks and
# experts; a latent; attention and MLP beside each other.
UNLIKE = ("gpt2", "gemma2", "gpt_oss", "deepseek_v3", "cohere2")
GREEDY = Sampling(temperature=0.0, logprobs=2)
KV_BYTES = 8 << 20  # GPT-2 has keys and values of every head


FAMILIES = [one for one in model_types() if (known := find_architecture(one)) is not None and known.generates]
EACH = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            EngineKind("bfloat16", kv_bytes=KV_BYTES, family=family),
            id=family,
            marks=() if family in UNLIKE else pytest.mark.slow,
        )
        for family in FAMILIES
    ],
)


@EACH
def test_a_source_takes_what_a_target_began_and_the_target_goes_on_when_it_dies(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool, sampling=GREEDY)
        await pool.help("s", "t")
        await pool.until(lambda: pool.client.wishes[0].is_over)  # its KV of two layers came from the target
        assert pool.count("s", "pulled_tasks") == 1
        for number in (7, 8):
            request = submit(f"r{number}", random_prompt(number, 150), max_tokens=6, sampling=GREEDY)
            await pool.client.submit(request, "t")
        await pool.until(lambda: pool.count("s", "pulled_tasks") >= 2)
        await pool.kill("s")
        await pool.load("t", list(range(BLOCKS)), "zigzag")
        await pool.until(lambda: pool.ready("t") == BLOCKS)

    with_live_scale(act, kind=kind)


@EACH
@pytest.mark.parametrize("died", [False, True])
def test_a_pipeline_moves_its_kv_to_those_that_serve_alone_then_though_one_dies(kind: EngineKind, died: bool) -> None:
    async def act(pool: WorkerPool) -> None:
        await whole(pool, "a", "b", "c")
        pool.act(pool.serve("a"))
        await pool.until(lambda: pool.count("c", "pipeline_moved_tokens") > 0)
        if died:
            await pool.kill("b")
        for worker in "ac" if died else "abc":
            await pool.serve(worker)

    running(act, "move", kind)


@EACH
def test_requests_are_decoded_where_they_were_not_prefilled(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        for number in range(3):
            request = submit(f"r{number}", random_prompt(number, 200), max_tokens=12, sampling=GREEDY)
            await pool.client.submit(request, "p", decode="d")
        await pool.until(lambda: taken(pool) == 3)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))

    with_pair(act, kind=kind)
