"""Encoders make the vectors and scores of transformers, and a vector's bits depend on its prompt alone."""

import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

from livescale.services.worker.engine.contract import LayerwiseRun
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.scheduling.batch import NO_BYTES, Batch, Chosen
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling, Submit
from tests.worker.engine.architectures import ENCODERS
from tests.worker.engine.models import KINDS, Checkpointed, Kind
from tests.worker.engine.pooled import Numbers, cosine, numbers, pool, pooling_checkpoint, pooling_reference
from tests.worker.engine.test_tensor_parallel import in_ranks
from tests.worker.requests import limits, random_prompt, submit

PROMPTS = {str(length): random_prompt(length, length) for length in (1, 5, 129, 300, 510)}
WAYS = [(model_type, way) for model_type in ENCODERS for way in ("cls_token", "mean_tokens", "scores")]


def each_way() -> Iterator[ParameterSet]:
    """Each model with every way to compute; most of torch's, which take long, are slow tests."""
    for kind in KINDS:
        for model_type, way in WAYS:
            is_long = "torch" in str(kind.id) and (model_type, way) != ("bert", "mean_tokens")
            marks = [*kind.marks, *([pytest.mark.slow] if is_long else [])]
            yield pytest.param(model_type, way, *kind.values, marks=marks, id=f"{model_type}-{way}-{kind.id}")


def asking(key: str, prompt: list[int], model_type: str = "xlm-roberta") -> Submit:
    """A request for the vector of a prompt, which is two texts where the model tells them apart."""
    # No padding token, which transformers hides or counts otherwise.
    prompt = [max(token, 3) for token in prompt]
    second = len(prompt) // 3 if model_type == "bert" else 0
    return submit(key, prompt, max_tokens=1, sampling=Sampling(pools=True, second=second))


def theirs(model_type: str, way: str, request: Submit, dtype: DType = "float32") -> Numbers:
    """What transformers makes of the same request."""
    return _theirs(model_type, way, tuple(request.prompt), request.sampling.second, dtype)


@cache  # all ways to compute are held against the same
def _theirs(model_type: str, way: str, prompt: tuple[int, ...], second: int, dtype: DType) -> Numbers:
    kinds = torch.zeros(1, len(prompt), dtype=torch.long)
    if second:
        kinds[0, second:] = 1
    with torch.inference_mode():
        model = pooling_reference(model_type, "scores" if way == "scores" else "embeds", dtype)
        made = model(torch.tensor([prompt]), token_type_ids=kinds)
    if way == "scores":
        right: Numbers = made.logits[0].double().numpy()
    else:
        rows = made.last_hidden_state[0].double()
        right = (rows[0] if way == "cls_token" else rows.mean(dim=0)).numpy()
    return right


def of(model_type: str, way: str, dtype: DType = "float32", shards: int = 1) -> Checkpointed:
    return pooling_checkpoint(model_type, "scores" if way == "scores" else "embeds", dtype, shards, way)


@pytest.mark.parametrize(("model_type", "way", "kind"), [*each_way()])
def test_vectors_and_scores_are_those_of_transformers(model_type: str, way: str, kind: Kind) -> None:
    engine = of(model_type, way, kind.dtype).engine(kernels=kind.kernels)
    requests = [asking(key, prompt, model_type) for key, prompt in PROMPTS.items()]
    made, _ = pool(engine, [(0, request) for request in requests], encodes=True)
    for request in requests:
        ours, right = numbers(made[request.request_id]), theirs(model_type, way, request)
        if kind.dtype == "float32":
            assert np.abs(ours - right).max() <= 1e-4 * max(right.std(), np.abs(right).max()), request.request_id
        elif way != "scores":
            assert cosine(ours, right) >= 0.9995, request.request_id
            assert cosine(ours, right) >= cosine(theirs(model_type, way, request, "bfloat16"), right) - 1e-4


@pytest.mark.parametrize(("model_type", "way", "kind"), [*each_way()])
def test_neither_batch_nor_way_through_the_layers_changes_a_bit(model_type: str, way: str, kind: Kind) -> None:
    engine, chance = of(model_type, way, kind.dtype).engine(kernels=kind.kernels), random.Random(2)
    requests = [asking(key, prompt, model_type) for key, prompt in PROMPTS.items()]
    alone = {one.request_id: pool(engine, [(0, one)], encodes=True)[0][one.request_id] for one in requests}
    arrivals = [(chance.randrange(3), one) for one in requests]
    arrivals += [(3, asking(f"again {key}", prompt, model_type)) for key, prompt in PROMPTS.items()]
    together, cached = pool(engine, arrivals, max_num_seqs=3, max_num_batched_tokens=512, encodes=True)
    assert cached == 0
    for key, made in alone.items():
        assert together[key] == together[f"again {key}"] == made, key
    assert in_parts(engine, requests[3:4]) == alone["300"]
    assert layer_by_layer(engine, requests[3:4]) == alone["300"]


def batch_of(requests: list[Submit]) -> Batch:
    scheduler = Scheduler(limits(pools=True, encodes=True))
    for request in requests:
        scheduler.add(request)
    batch = scheduler.next_batch()
    assert batch is not None
    assert [(len(chunk.tokens), chunk.whole) for chunk in batch.chunks] == [(len(requests[0].prompt), True)]
    return batch


def in_parts(engine: TorchEngine, requests: list[Submit]) -> bytes:
    """The vector, where the model's first part is computed, and then the other, as stages of a pipeline do."""
    batch = batch_of(requests)
    half = engine.run_blocks(range(3), batch.chunks, NO_BYTES)
    return engine.run_blocks(range(3, 6), batch.chunks, half.activation).chosen.logprobs[0].pooled


def layer_by_layer(engine: TorchEngine, requests: list[Submit]) -> bytes:
    """The vector, where each layer is run by itself, as a target does whose layers still arrive."""
    batch = batch_of(requests)
    run = LayerwiseRun(list(batch.chunks))
    for _ in range(engine.store.layers):
        engine.run_layer([run])
    return engine.run_blocks(range(5, 6), batch.chunks, run.activation).chosen.logprobs[0].pooled


@pytest.mark.parametrize(("model_type", "way"), [("bert", "mean_tokens"), ("bert", "scores"), ("roberta", "scores")])
def test_two_ranks_are_right(model_type: str, way: str) -> None:
    request = asking("a", PROMPTS["129"], model_type)
    batch = batch_of([request])
    made = in_ranks(of(model_type, way, shards=2), 2, lambda engine: engine.step(batch))
    right = theirs(model_type, way, request)
    assert np.abs(numbers(made[0].logprobs[0].pooled) - right).max() <= 1e-4 * max(right.std(), np.abs(right).max())


def test_a_prompt_that_no_step_holds_is_refused() -> None:
    scheduler = Scheduler(limits(pools=True, encodes=True, max_num_batched_tokens=256))
    with pytest.raises(Refusal, match="prompt is 300 tokens, and one step, in which it has to run, has at most 256"):
        scheduler.add(asking("a", PROMPTS["300"]))


def test_short_prompts_do_not_starve_a_long_one() -> None:
    """It runs as soon as it is first in line."""
    scheduler, steps = Scheduler(limits(pools=True, encodes=True)), list[set[str]]()
    scheduler.add(asking("short 0", PROMPTS["129"]))
    scheduler.add(asking("long", PROMPTS["510"]))
    for number in range(1, 12):
        scheduler.add(asking(f"short {number}", PROMPTS["129"]))
    while (batch := scheduler.next_batch()) is not None:
        steps.append({chunk.request_id for chunk in batch.chunks})
        scheduler.complete(batch, Chosen([0] * len(batch.samplings)), 0.0)
    assert "long" in steps[1], steps
