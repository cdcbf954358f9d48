"""A layer in one call: the bits of its parts, and nothing that torch has to allocate."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from msgspec.structs import replace

from livescale.load.bench.engine.overhead import Operations
from livescale.services.worker.engine.compiled_layer import CompiledLayer
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import VARIANTS, find_compiled
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, ScheduledChunk
from tests.worker.engine.adapted import adapter, add
from tests.worker.engine.configs import ALL_CONFIGS, OTHER_CONFIGS, SMALL_CONFIGS
from tests.worker.engine.models import KERNELS, Kind, checkpointed, kind, needs_kernels

BLOCKS = 24  # of each request
# Architectures that the kernel knows all parts of: windows, biases and rotations by layer are among them.
IN_ONE_CALL = {f"{name}-small" for name in ("llama", "qwen2", "mistral", "phi3", "smollm3")}
EVERY_WAY = [kind("portable", "float32"), *(kind(variant, "bfloat16") for variant in VARIANTS)]


def of_parts(way: Kind, name: str) -> TorchEngine:
    """An engine that calls the parts of each layer one by one."""
    made = way.engine(name)
    for index, layer in made._layers.items():
        assert isinstance(layer, CompiledLayer)
        made._layers[index] = layer._layer
    return made


def chunk(request: int, start: int, stop: int, *, decode: bool) -> ScheduledChunk:
    tokens = tuple((7 * position + request) % 500 for position in range(start, stop))
    return ScheduledChunk(f"r{request}", tokens, start, range(BLOCKS * request, BLOCKS * (request + 1)), decode)


def prompts(first: int, rows: int) -> list[ScheduledChunk]:
    """So many rows, of as many requests as that takes."""
    lengths = [min(PREFILL_CHUNK, rows - start) for start in range(0, rows, PREFILL_CHUNK)]
    return [chunk(first + number, 0, length, decode=False) for number, length in enumerate(lengths)]


def steps() -> Iterator[list[ScheduledChunk]]:
    """Prompts and decodes, alone and together, as many rows as are computed at a time, one more, and many more."""
    compiled = find_compiled()
    assert compiled is not None
    rows = compiled.LAYER_ROWS
    yield [chunk(0, 0, 1, decode=False)]
    yield prompts(1, rows)
    yield [*prompts(4, rows), chunk(0, 1, 2, decode=True)]
    yield [chunk(0, 2, 3, decode=True)]
    yield [chunk(1, 48, 49, decode=True), chunk(7, 0, 11, decode=False), chunk(0, 3, 6, decode=True)]
    yield [chunk(0, 6, rows + 20, decode=True), *prompts(1, 2 * rows - 3), chunk(7, 11, 12, decode=True)]


@torch.inference_mode()
def through(made: TorchEngine, chunks: Sequence[ScheduledChunk]) -> torch.Tensor:
    """Logits of all rows."""
    rows = made.rows(chunks)
    return made.head(made.layers(0, made.store.layers, made.embed(rows), rows))


@pytest.mark.parametrize(
    "name", [name for name in ALL_CONFIGS if name not in SMALL_CONFIGS | OTHER_CONFIGS or name in IN_ONE_CALL]
)
@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_layer_in_one_call_has_the_bits_of_its_parts(way: Kind, name: str) -> None:
    whole, parts = way.engine(name), of_parts(way, name)
    for chunks in steps():
        assert torch.equal(through(whole, chunks), through(parts, chunks))
    assert torch.equal(whole.store.cache, parts.store.cache)


@pytest.mark.parametrize("name", ["qwen2-untied", "qwen2-tied"])
@pytest.mark.parametrize("way", EVERY_WAY)
def test_rows_with_adapters_have_the_bits_of_parts_in_one_call(way: Kind, name: str) -> None:
    whole, parts = way.engine(name), of_parts(way, name)
    assert all(isinstance(layer, CompiledLayer) for layer in whole._layers.values())
    made = [adapter(name, 1, way.dtype), adapter(name, 2, way.dtype, 33, matrices=("k_proj", "up_proj", "down_proj"))]
    first, second = ([add(engine, one).version for one in made] for engine in (whole, parts))
    assert first == second
    decodes = [chunk(request, 0, 1, decode=False) for request in range(8)]
    for chunks in (decodes, *steps()):
        base = through(whole, chunks)
        assert torch.equal(base, through(parts, chunks))
        for uses in ([first[0]], [first[1], None, first[0]]):
            mixed = [replace(one, adapter=uses[number % len(uses)]) for number, one in enumerate(chunks)]
            rows = through(whole, mixed)
            assert torch.equal(rows, through(parts, mixed))
            assert not torch.equal(rows[0], base[0])
    assert torch.equal(whole.store.cache, parts.store.cache)


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_model_may_have_one_layer(way: Kind) -> None:
    made = way.engine("llama-one-layer")
    assert through(made, prompts(1, 40)).isfinite().all()


@needs_kernels
def test_layers_of_few_rows_allocate_nothing() -> None:
    made = checkpointed("qwen2-untied", "bfloat16").engine(kernels=KERNELS)
    with torch.inference_mode():
        rows = made.rows([chunk(request, 0, 1, decode=True) for request in range(8)])
        hidden = made.embed(rows)
        with Operations() as operations:
            result = made.layers(0, made.store.layers, hidden, rows)
    assert result.data_ptr() == hidden.data_ptr()
    assert [str(call.func) for call in operations.seen] in ([], ["aten.slice.Tensor"])
