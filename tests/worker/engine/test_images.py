"""Models of images: right against transformers, and no bit depends on what else runs."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import torch
from _pytest.mark import ParameterSet
from msgspec.structs import replace
from PIL import Image
from torch._C._distributed_c10d import HashStore

from livescale.services.worker.engine.contract import LayerwiseRun
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.tensor_parallel import ProcessGroup
from livescale.services.worker.scheduling.batch import NO_BYTES, Batch, Chosen
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.tensor_parallel.wire import decode_batch, encode_batch
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.images import Images
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling, Submit
from tests.worker.engine.models import KINDS, Kind
from tests.worker.engine.pooled import Numbers, numbers, pool, pooling_checkpoint, pooling_reference, preprocessor
from tests.worker.requests import limits, submit

COUNT = 5


def each_kind() -> Iterator[ParameterSet]:
    """Every way to compute."""
    for kind in KINDS:
        yield pytest.param(*kind.values, marks=kind.marks, id=kind.id)


@cache
def images() -> Images:
    found = pooling_checkpoint("vit", "images").manifest.config.images
    assert found is not None
    return found


def pixels_of(seed: int) -> "npt.NDArray[np.uint8]":
    return np.random.default_rng(seed).integers(0, 256, (images().size, images().size, 3), np.uint8)


def asking(key: str, seed: int) -> Submit:
    prompt = [0] * images().rows
    return submit(key, prompt, max_tokens=1, sampling=Sampling(pools=True), pixels=pixels_of(seed).tobytes())


def theirs(seed: int, dtype: DType = "float32") -> Numbers:
    """What transformers makes of the same image."""
    image = Image.fromarray(pixels_of(seed))
    values = preprocessor("vit")(image, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        logits: Numbers = pooling_reference("vit", "images", dtype)(values).logits[0].double().numpy()
    return logits


@pytest.mark.parametrize("kind", [*each_kind()])
def test_logits_are_those_of_transformers(kind: Kind) -> None:
    engine = pooling_checkpoint("vit", "images", kind.dtype).engine(kernels=kind.kernels)
    requests = [(0, asking(str(seed), seed)) for seed in range(COUNT)]
    made, _ = pool(engine, requests, encodes=True, images=images(), vocab_size=1)
    ours = np.stack([numbers(made[str(seed)]) for seed in range(COUNT)])
    right = np.stack([theirs(seed) for seed in range(COUNT)])
    if kind.dtype == "float32":
        assert np.abs(ours - right).max() <= 1e-4 * right.std()
    else:
        other = np.stack([theirs(seed, "bfloat16") for seed in range(COUNT)])
        assert np.abs(ours - right).mean() <= 1.5 * np.abs(other - right).mean()


@pytest.mark.parametrize("kind", [*each_kind()])
def test_neither_batch_nor_way_through_the_layers_changes_a_bit(kind: Kind) -> None:
    engine, chance = pooling_checkpoint("vit", "images", kind.dtype).engine(kernels=kind.kernels), random.Random(2)
    fields = {"encodes": True, "images": images(), "vocab_size": 1}
    alone = [pool(engine, [(0, asking("a", seed))], **fields)[0]["a"] for seed in range(COUNT)]
    assert len(set(alone)) == COUNT
    arrivals = [(chance.randrange(2), asking(str(seed), seed)) for seed in range(COUNT)]
    together, _ = pool(engine, arrivals, max_num_seqs=3, max_num_batched_tokens=512, **fields)
    assert [together[str(seed)] for seed in range(COUNT)] == alone
    assert in_parts(engine, 1) == layer_by_layer(engine, 1) == alone[1]


def batch_of(seed: int) -> Batch:
    scheduler = Scheduler(limits(pools=True, encodes=True, images=images(), vocab_size=1))
    scheduler.add(asking("a", seed))
    batch = scheduler.next_batch()
    assert batch is not None
    return batch


def in_parts(engine: TorchEngine, seed: int) -> bytes:
    """The scores, where stages compute the model's parts: only the first has the pixels."""
    chunks = batch_of(seed).chunks
    half = engine.run_blocks(range(3), chunks, NO_BYTES)
    without = [replace(chunk, pixels=b"") for chunk in chunks]
    return engine.run_blocks(range(3, 6), without, half.activation).chosen.logprobs[0].pooled


def layer_by_layer(engine: TorchEngine, seed: int) -> bytes:
    """The scores, where each layer is run by itself, as a target does whose layers still arrive."""
    run = LayerwiseRun(list(batch_of(seed).chunks))
    for _ in range(engine.store.layers):
        engine.run_layer([run])
    return engine.run_blocks(range(5, 6), run.chunks, run.activation).chosen.logprobs[0].pooled


def test_two_ranks_are_right_where_only_the_first_has_the_pixels() -> None:
    batch, cut, store = batch_of(3), pooling_checkpoint("vit", "images", shards=2), HashStore()
    told = decode_batch(encode_batch(batch))
    assert [chunk.pixels for chunk in told.chunks] == [b""]

    def run(shard: int) -> Chosen:
        engine = cut.rank(shard, ProcessGroup(store, shard, 2, "127.0.0.1"))
        return engine.step(told if shard else batch)

    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        made = list(threads.map(run, range(2)))
    ours, right = numbers(made[0].logprobs[0].pooled), theirs(3)
    assert np.abs(ours - right).max() <= 1e-4 * right.std()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pixels": b""}, "pixels: they have 0 bytes, and this model takes 8112"),
        ({"prompt": [0] * 7}, "prompt: it has 7 tokens, and an image has 101"),
    ],
)
def test_a_request_without_all_of_an_image_is_refused(fields: dict[str, object], reason: str) -> None:
    scheduler = Scheduler(limits(pools=True, encodes=True, images=images(), vocab_size=1))
    with pytest.raises(Refusal, match=reason):
        scheduler.add(replace(asking("a", 0), **fields))


def test_a_model_of_texts_takes_no_pixels() -> None:
    scheduler = Scheduler(limits(pools=True, encodes=True))
    with pytest.raises(Refusal, match="pixels: they have 8112 bytes, and this model takes 0"):
        scheduler.add(asking("a", 0))
