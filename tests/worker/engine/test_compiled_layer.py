"""A layer in one call: the bits of its parts, and nothing that torch has to allocate."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from load.bench.engine_python import Operations
from services.worker.batch import PREFILL_CHUNK, Piece
from services.worker.engine import compiled_linear
from services.worker.engine.compiled_layer import CompiledLayer
from services.worker.engine.engine import Engine
from services.worker.engine.layer import Layer
from tests.worker.engine.models import ALL_CONFIGS, KERNELS, checkpointed, needs_kernels

pytestmark = needs_kernels
BLOCKS = 20  # of each request


def engine(name: str) -> Engine:
    return checkpointed(name, "bfloat16").engine(kernels=KERNELS)


def of_parts(name: str) -> Engine:
    """The same engine, none of whose layers is one call."""
    made = engine(name)
    for index, layer in made._layers.items():
        assert isinstance(layer, CompiledLayer)
        made._layers[index] = layer._layer
    return made


def piece(request: int, start: int, stop: int, *, decode: bool) -> Piece:
    tokens = tuple((7 * position + request) % 500 for position in range(start, stop))
    return Piece(f"r{request}", tokens, start, range(BLOCKS * request, BLOCKS * (request + 1)), decode)


def prompts(first: int, rows: int) -> list[Piece]:
    """So many rows, of as many requests as that takes."""
    lengths = [min(PREFILL_CHUNK, rows - start) for start in range(0, rows, PREFILL_CHUNK)]
    return [piece(first + number, 0, length, decode=False) for number, length in enumerate(lengths)]


def steps() -> Iterator[list[Piece]]:
    """Prompts and decodes, alone and together, as many rows as are computed at a time, one more, and many more."""
    assert KERNELS is not None
    rows = KERNELS.LAYER_ROWS
    yield [piece(0, 0, 1, decode=False)]
    yield prompts(1, rows)
    yield [*prompts(4, rows), piece(0, 1, 2, decode=True)]
    yield [piece(0, 2, 3, decode=True)]
    yield [piece(1, 48, 49, decode=True), piece(7, 0, 11, decode=False), piece(0, 3, 6, decode=True)]
    yield [piece(0, 6, rows + 20, decode=True), *prompts(1, 2 * rows - 3), piece(7, 11, 12, decode=True)]


@torch.inference_mode()
def through(made: Engine, pieces: Sequence[Piece]) -> torch.Tensor:
    """Logits of all rows."""
    rows = made.rows(pieces)
    return made.head(made.layers(0, made.store.layers, made.embed(rows), rows))


@pytest.mark.parametrize("name", ALL_CONFIGS)
def test_a_layer_in_one_call_has_the_bits_of_its_parts(name: str) -> None:
    whole, parts = engine(name), of_parts(name)
    for pieces in steps():
        assert torch.equal(through(whole, pieces), through(parts, pieces))
    assert torch.equal(whole.store.cache, parts.store.cache)


def test_layers_whose_matrices_are_not_for_the_kernel_are_called_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine("llama2-untied")
    monkeypatch.setattr(compiled_linear, "matching_span", lambda kernels, outputs, inputs: None)
    parts = engine("llama2-untied")
    assert all(type(layer) is Layer for layer in parts._layers.values())
    for pieces in steps():
        assert torch.equal(through(whole, pieces), through(parts, pieces))


def test_layers_of_few_rows_allocate_nothing() -> None:
    made = engine("qwen2-untied")
    with torch.inference_mode():
        rows = made.rows([piece(request, 0, 1, decode=True) for request in range(8)])
        hidden = made.embed(rows)
        with Operations() as operations:
            result = made.layers(0, made.store.layers, hidden, rows)
    assert result.data_ptr() == hidden.data_ptr()
    assert [str(call.func) for call in operations.seen] in ([], ["aten.slice.Tensor"])


def test_rows_that_are_few_are_not_padded_for_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine("llama-panels-untied")
    assert made._head is not None
    one = torch.zeros(1, 128, dtype=torch.bfloat16)
    assert made._head.padded(one) is one
    monkeypatch.setattr(compiled_linear, "matching_span", lambda kernels, outputs, inputs: None)
    other = engine("llama-panels-untied")
    assert other._head is not None
    assert len(other._head.padded(one)) == 4
