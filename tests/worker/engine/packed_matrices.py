"""Random packed matrices, and the same in bfloat16 as the law says it."""

from dataclasses import dataclass

import numpy as np
import torch

from livescale.services.worker.engine.parameters import SCALE_TYPES, PackedMatrix, packed_matrix
from livescale.shared.messages.parameters import Tensor
from livescale.shared.messages.quantization import Packing
from livescale.shared.model.packed.form import CODE_BITS, MIDDLES, PANEL_OUTPUTS, group_count, group_of, packed_bytes
from livescale.shared.model.packed.panels import pack_panels


@dataclass(frozen=True)
class Made:
    """A matrix `[output, input]` in either form."""

    packed: PackedMatrix
    right: torch.Tensor


def make_packed(packing: Packing, outputs: int, inputs: int, seed: int = 1, scale: float = 0.01) -> Made:
    """Every code is drawn, and scales of either sign, over several powers of two."""
    chance = np.random.default_rng(seed)
    groups = group_count(packing, inputs)
    codes = chance.integers(0, 1 << CODE_BITS[packing.codes], (outputs, inputs), np.uint8)
    if packing.codes == "fp8":
        codes[:, inputs // 2 :] |= 0x40  # none of these is denormal: kernels unpack those in a way of their own
        codes[codes & 0x7F == 0x7F] = 0x40  # NaN
    drawn = torch.from_numpy(chance.uniform(-8, 8, (outputs, groups)) * scale)
    if packing.scales == "e8m0":
        drawn = drawn.abs().clamp(min=1e-6)
    if packing.scales == "float32-panel":
        drawn = drawn[::PANEL_OUTPUTS].repeat_interleave(PANEL_OUTPUTS, dim=0)[:outputs]
    scales = drawn.to(SCALE_TYPES[packing.scales])
    zeros = chance.integers(0, 16, (outputs, groups), np.uint8) if packing.zeros else None
    into = np.empty(packed_bytes(packing, outputs, inputs), np.uint8)
    as_bytes = scales.view(torch.uint8).numpy().reshape(outputs, groups, -1)
    pack_panels(packing, codes, as_bytes, zeros, into)
    tensor = Tensor(name="m.weight", shape=[outputs, inputs], offset=0, packing=packing)
    right = dequantized(packing, torch.from_numpy(codes), scales, None if zeros is None else torch.from_numpy(zeros))
    return Made(packed_matrix(torch.from_numpy(into), tensor), right)


def dequantized(
    packing: Packing, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None
) -> torch.Tensor:
    """(code - zero) * scale in float32, rounded once to bfloat16."""
    inputs = codes.shape[1]
    group = torch.arange(inputs) // group_of(packing, inputs)
    if packing.codes == "fp8":
        numbers = codes.view(torch.float8_e4m3fn).float()
    elif packing.codes == "fp4":
        magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])[(codes & 7).long()]
        numbers = torch.where(codes >= 8, -magnitudes, magnitudes)
    else:
        numbers = codes.float() - (MIDDLES[packing.codes] if zeros is None else zeros.float()[:, group])
    return (numbers * scales.float()[:, group]).bfloat16()
