"""Several ranks, each a thread with its shard of a model, in a process group of gloo's."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from livescale.services.worker.engine.engine import Engine
from livescale.services.worker.engine.process_group import ProcessGroup
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling, Submit
from tests.worker.engine.models import CUT_CONFIGS, are_greedy, checkpointed, reference_logits
from tests.worker.serving import Served, random_prompt, serve, serve_each, strays, submit

T = TypeVar("T")


def on_ranks(name: str, dtype: DType, shards: int, work: Callable[[Engine], T]) -> list[T]:
    """What comes of `work` at each rank of an instance: all do the same."""
    store = HashStore()
    cut = checkpointed(name, dtype, shards)

    def run(shard: int) -> T:
        return work(cut.rank(shard, ProcessGroup(store, shard, shards, "127.0.0.1")))

    with ThreadPoolExecutor(shards, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        return list(threads.map(run, range(shards)))


def requests() -> list[Submit]:
    lengths = (1, 3, 128, 129, 300)
    greedy, seeded = Sampling(temperature=0.0), Sampling(temperature=0.9, seed=3)
    return [
        submit(str(length), random_prompt(length, length), max_tokens=12, sampling=seeded if length == 3 else greedy)
        for length in lengths
    ]


def serve_all(engine: Engine) -> Served:
    return serve(engine, [(0, request) for request in requests()])


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("name", CUT_CONFIGS)
def test_several_ranks_are_right(name: str, shards: int) -> None:
    served = on_ranks(name, "float32", shards, serve_all)[0]
    for request in requests():
        tokens = served.tokens[request.request_id]
        logits = reference_logits(name, request.prompt, tokens)
        assert torch.allclose(served.rows(request.request_id), logits, atol=1e-3, rtol=1e-3), request.request_id
        if request.sampling.temperature == 0.0:
            assert are_greedy(logits, tokens), request.request_id


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_rank_of_every_instance_of_a_degree_has_the_same_bits(dtype: DType) -> None:
    first, second = (on_ranks("qwen2-cut-tied", dtype, 4, serve_all) for _ in range(2))
    for other in (*first[1:], *second):
        assert other.tokens == first[0].tokens
        for key in first[0].logits:
            assert torch.equal(other.rows(key), first[0].rows(key)), key


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CUT_CONFIGS)
def test_batch_composition_changes_no_bit_of_several_ranks(name: str, dtype: DType) -> None:
    def compare(engine: Engine) -> None:
        alone = serve_each(engine, requests())
        staggered = [(3 * order, request) for order, request in enumerate(reversed(requests()))]
        together = serve(engine, staggered, max_num_seqs=3, max_num_batched_tokens=144)
        for key, served in alone.items():
            assert together.tokens[key] == served.tokens[key]
            assert torch.equal(together.rows(key), served.rows(key)), key

    on_ranks(name, dtype, 2, compare)


def test_bfloat16_on_several_ranks_strays_no_further_than_on_one() -> None:
    name = "llama-cut-untied"
    served, alone = on_ranks(name, "bfloat16", 4, serve_all)[0], serve_all(checkpointed(name, "bfloat16").engine())
    prompts = {request.request_id: request.prompt for request in requests()}
    several, one = (strays(name, prompts, made)[0] for made in (served, alone))
    assert several <= 1.2 * one
