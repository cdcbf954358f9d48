"""Numbers are converted as torch does, for every number that a type has; matrices that a checkpoint has as `[in, out]`
are read as `[out, in]`, whole, joined, or the part of a rank."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.host.conversion import (
    SERVED_BITS,
    STORED_BITS,
    Bits,
    Matrix,
    are_finite,
    convert,
    lay_in_panels,
    read_transposed,
    to_panels,
)
from livescale.services.host.safetensors_files import SINGLE, StoredDType, read_header
from livescale.services.worker.engine.parameters import TORCH_DTYPES, block_tensors
from livescale.shared.messages.parameters import DType
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.tensors import Source
from livescale.shared.model.sharding import ShardSlice
from tests.checkpoints import tiny_checkpoint

STORED: dict[StoredDType, torch.dtype] = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
SERVED: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def bits_of(values: torch.Tensor) -> Bits:
    bits: Bits = values.view(torch.uint32 if values.itemsize == 4 else torch.uint16).numpy()
    return bits


def numbers(stored: StoredDType) -> torch.Tensor:
    """Every number of 16 bits; of 32 bits those around what rounding to 16 decides, with any sign and exponent."""
    high = np.arange(1 << 16, dtype=np.uint32)
    if stored != "F32":
        return torch.from_numpy(high.astype(np.uint16)).view(STORED[stored])
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return torch.from_numpy((high << 16 | low[:, None]).ravel()).view(torch.float32)


@pytest.mark.parametrize("dtype", SERVED)
@pytest.mark.parametrize("stored", STORED)
def test_finite_numbers_are_converted_as_torch_does(stored: StoredDType, dtype: DType) -> None:
    values = numbers(stored)
    values = values[values.isfinite()]
    found = np.empty(len(values), SERVED_BITS[dtype])
    convert(bits_of(values), stored, dtype, found)
    assert np.array_equal(found, bits_of(values.to(SERVED[dtype])))


@pytest.mark.parametrize("stored", STORED)
def test_a_number_that_is_not_finite_is_found_wherever_it_lies(stored: StoredDType) -> None:
    values = numbers(stored)
    assert are_finite(bits_of(values[values.isfinite()]), stored)
    for value in bits_of(values[~values.isfinite()])[::7]:
        assert not are_finite(np.array([value]), stored)
    many = np.zeros(600_000, STORED_BITS[stored])
    many[-1] = bits_of(torch.tensor([-torch.inf]).to(STORED[stored]))[0]
    assert not are_finite(many, stored)
    assert are_finite(many[:-1], stored)


INPUTS, OUTPUTS, NAME = 37, 60, "c_attn.weight"
JOINED = Source(NAME, 20, 30, transposed=True)  # outputs 20 to 49
CUTS = [None, ShardSlice(0, 10, 20), ShardSlice(1, 5, 29)]


def stored(directory: Path, matrix: torch.Tensor) -> None:
    save_file({NAME: matrix}, directory / SINGLE)


def read(directory: Path, cut: ShardSlice | None, dtype: DType) -> torch.Tensor:
    rows = JOINED.rows if cut is None or cut.dimension else cut.stop - cut.start
    columns = cut.stop - cut.start if cut is not None and cut.dimension else INPUTS
    into = torch.empty(rows, columns, dtype=TORCH_DTYPES[dtype])
    tensor = read_header(directory / SINGLE)[NAME]
    read_transposed(tensor, JOINED, cut, into.view(torch.uint8).flatten().numpy().data, dtype)
    return into


@pytest.mark.parametrize("at_once", [8 << 20, 1_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cut", CUTS, ids=["whole", "outputs", "inputs"])
def test_a_part_is_what_torch_makes_of_it(
    cut: ShardSlice | None,
    own: torch.dtype,
    dtype: DType,
    at_once: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("livescale.services.host.safetensors_files.SCRATCH_BYTES", at_once)
    matrix = torch.randn(INPUTS, OUTPUTS).to(own)
    stored(tmp_path, matrix)
    expected = matrix.T[20:50]
    if cut is not None:
        expected = expected.narrow(cut.dimension, cut.start, cut.stop - cut.start)
    assert torch.equal(read(tmp_path, cut, dtype), expected.to(TORCH_DTYPES[dtype]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_with_the_file(value: float, tmp_path: Path) -> None:
    matrix = torch.randn(INPUTS, OUTPUTS)
    matrix[3, 33] = value
    stored(tmp_path, matrix)
    with pytest.raises(CheckpointError, match=rf"{SINGLE}: c_attn.weight holds NaN or infinity in bfloat16; download"):
        read(tmp_path, None, "bfloat16")


def test_two_ranks_have_the_parts_of_gpt2_in_panels_too() -> None:
    directory = tiny_checkpoint("gpt2")
    theirs = {}
    for layout in ("plain", "panels"):
        checkpoint = open_checkpoint(directory, "bfloat16", 2, layout)
        blocks = [memoryview(bytearray(one.size_bytes)) for one in checkpoint.layouts]
        manifest = checkpoint.manifest([checkpoint.read_block(index, block) for index, block in enumerate(blocks)])
        second = len(blocks) // 2 + 1  # the first layer of the second rank
        theirs[layout] = block_tensors(manifest.blocks[second], blocks[second], "bfloat16")
    name = "model.layers.0.mlp.down_proj.weight"
    plain, panels = theirs["plain"][name], theirs["panels"][name]
    assert panels.shape == (3, 80, 64, 2)
    assert torch.equal(panels.permute(0, 2, 1, 3).reshape(plain.shape), plain)


def numbered(rows: int, columns: int) -> Matrix:
    return np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns)


@pytest.mark.parametrize("shape", [(64, 32), (128, 64), (320, 96)])
def test_a_matrix_comes_back_from_panels_as_it_was(shape: tuple[int, int]) -> None:
    matrix = numbered(*shape)
    panels = to_panels(matrix)
    assert panels.shape == (shape[0] // 64, shape[1] // 2, 64, 2)
    assert np.array_equal(panels.swapaxes(1, 2).reshape(shape), matrix)
    lay_in_panels(matrix)
    assert np.array_equal(matrix.ravel(), panels.ravel())


def test_a_pair_of_columns_lies_together_row_after_row() -> None:
    panels = to_panels(numbered(128, 32))
    assert panels[1, 3, 5].tolist() == [(64 + 5) * 32 + 6, (64 + 5) * 32 + 7]
