"""Numbers are converted as torch does, for every number that a type has."""

import numpy as np
import pytest
import torch

from livescale.services.host.conversion import SERVED_BITS, STORED_BITS, Bits, are_finite, convert
from livescale.services.host.safetensors_files import StoredDType
from livescale.shared.messages.parameters import DType

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
