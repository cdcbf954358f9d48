"""Row invariance at the shapes that people serve: libraries choose other kernels for matrices of many inputs."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pytest
import torch
from _pytest.mark import ParameterSet

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.engine.parameters import TORCH_DTYPES
from livescale.services.worker.scheduling.batch import PROMPT_CUT, ScheduledChunk
from livescale.shared.messages.parameters import DType, Manifest, ModelConfig
from livescale.shared.model.block_layout import block_layouts
from tests.worker.engine.models import KINDS, Kind
from tests.worker.requests import BLOCK_TOKENS

HEAD_DIM = 128
LAYERS = 1  # all have the same shapes
VOCABULARY = 640
CONTEXT = 256
BLOCKS = CONTEXT // BLOCK_TOKENS  # of each request
PROMPT = 75
ANSWER = 3
GAIN = 1.6


def shape(hidden: int) -> ModelConfig:
    heads = hidden // HEAD_DIM
    return ModelConfig(
        family="llama",
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 8,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        max_position_embeddings=CONTEXT,
    )


def fill(flat: torch.Tensor, shape: Sequence[int]) -> None:
    """Fill it with noise as wide as keeps activations as they are, from one layer to the next."""
    pattern = torch.randn(1_000_003, generator=torch.Generator().manual_seed(flat.numel())).to(flat.dtype)
    pattern *= GAIN / shape[-1] ** 0.5 if len(shape) == 2 else 1.0
    for start in range(0, flat.numel(), len(pattern)):
        part = flat[start : start + len(pattern)]
        part.copy_(pattern[: len(part)])


@lru_cache(maxsize=2)  # of one size in both types
def parameters(hidden: int, dtype: DType) -> tuple[Manifest, list[memoryview]]:
    """A model as a CPU's workers get it: its manifest and the bytes of its blocks."""
    config, blocks = shape(hidden), []
    layouts = block_layouts(config, dtype, layout="panels")
    for layout in layouts:
        buffer = torch.zeros(layout.size_bytes, dtype=torch.uint8)
        for tensor in layout.tensors:
            stop = tensor.offset + torch.Size(tensor.shape).numel() * TORCH_DTYPES[dtype].itemsize
            fill(buffer[tensor.offset : stop].view(TORCH_DTYPES[dtype]), tensor.shape)
        blocks.append(buffer.numpy().data)
    described = [layout.block(0) for layout in layouts]
    return Manifest(version="v", config=config, dtype=dtype, blocks=described, layout="panels"), blocks


def engine_of(hidden: int, way: Kind) -> TorchEngine:
    manifest, blocks = parameters(hidden, way.dtype)
    engine = TorchEngine(manifest, allocate_kv_memory(1 << 24), BLOCK_TOKENS, CONTEXT, way.kernels)
    for index, block in enumerate(blocks):
        engine.add_block(index, block)
    return engine


def chunk(request: int, start: int, stop: int, *, decode: bool = False) -> ScheduledChunk:
    tokens = tuple((7 * position + 31 * request) % VOCABULARY for position in range(start, stop))
    return ScheduledChunk(f"r{request}", tokens, start, range(BLOCKS * request, BLOCKS * (request + 1)), decode)


def through(engine: TorchEngine, *chunks: ScheduledChunk) -> dict[str, torch.Tensor]:
    """Logits of all rows of each request, of one step."""
    rows = engine.rows(chunks)
    logits = engine.head(engine.layers(0, LAYERS, engine.embed(rows), rows))
    parts = torch.split(logits, [len(one.tokens) for one in chunks])
    return {one.request_id: part.clone() for one, part in zip(chunks, parts, strict=True)}


def ways_and_sizes() -> Iterator[ParameterSet]:
    """Every way to compute at every hidden size. What takes seconds at the widest is slow: torch, AMX that is emulated,
    and float32, in which models of that width are not served."""
    for hidden in (4_096, 2_048, 1_024, 512):
        for way in KINDS:
            long = hidden == 4_096 and any(word in str(way.id) for word in ("torch", "emulated", "float32"))
            marks = [*way.marks, *([pytest.mark.slow] if long else [])]
            yield pytest.param(*way.values, hidden, marks=marks, id=f"{way.id}-{hidden}")


@pytest.mark.parametrize(("way", "hidden"), [*ways_and_sizes()])
@torch.inference_mode()
def test_rows_have_the_same_bits_however_they_are_batched_cut_and_computed_again(way: Kind, hidden: int) -> None:
    engine = engine_of(hidden, way)
    alone = through(engine, chunk(1, 0, PROMPT))["r1"]
    generated = [through(engine, chunk(1, at, at + 1, decode=True))["r1"] for at in range(PROMPT, PROMPT + ANSWER)]
    answer = torch.cat(generated)
    assert alone.std() > 0.1
    other = through(engine, chunk(2, 0, PROMPT))["r2"]
    cuts = range(PROMPT_CUT, PROMPT, PROMPT_CUT)
    for cut in cuts if hidden == 512 else (cuts[0], cuts[len(cuts) // 2], cuts[-1]):
        first, rest = through(engine, chunk(2, 0, cut))["r2"], through(engine, chunk(2, cut, PROMPT))["r2"]
        assert torch.equal(torch.cat((first, rest)), other), cut
    company = chunk(0, 0, 100), chunk(3, 0, 31), chunk(4, 0, 1)
    together = through(engine, *company[:1], chunk(1, 0, PROMPT), *company[1:])["r1"]
    assert torch.equal(together, alone)
    # The answer in a batch with decodes and a prompt, in its places again, and all at once as after a death.
    for at, right in zip(range(PROMPT, PROMPT + ANSWER), answer, strict=True):
        others = chunk(0, 100, 101, decode=True), chunk(5, 0, 17), chunk(4, 1, 2, decode=True)
        made = through(engine, others[0], chunk(1, at, at + 1, decode=True), *others[1:])["r1"]
        assert torch.equal(made[0], right), at
    again = through(engine, chunk(1, 0, PROMPT), chunk(6, 0, 3))["r1"]
    replayed = through(engine, chunk(3, 31, 32, decode=True), chunk(1, PROMPT, PROMPT + ANSWER, decode=True))["r1"]
    assert torch.equal(again, alone)
    assert torch.equal(replayed, answer)
