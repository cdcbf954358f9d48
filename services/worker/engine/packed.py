"""Packed matrices as the engine has them: their bytes where they arrived, and how torch unpacks them."""

from collections.abc import Sequence

import torch

from livescale.shared.messages.parameters import Tensor
from livescale.shared.messages.quantization import Codes, Packing, ScaleType
from livescale.shared.model.packed.form import CODE_BITS, MIDDLES, PANEL_OUTPUTS, group_count, group_of, panel_parts

# As kernels.h numbers them.
CODES: dict[Codes, int] = {"int4": 1, "int8": 2, "fp8": 3, "fp4": 4}
SCALES: dict[ScaleType, int] = {"bfloat16": 0, "float32": 1, "float16": 2, "e8m0": 3}
SCALE_TYPES: dict[ScaleType, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float16": torch.float16,
    "e8m0": torch.float8_e8m0fnu,
}
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
NOT_PACKED = (0, 0, 0, 0)
LANES = 16  # of the kernels' words


class PackedMatrix(torch.Tensor):
    """The bytes of a matrix `[outputs, inputs]` in packed panels, or of one for each of several `experts`."""

    packing: Packing
    outputs: int
    inputs: int
    experts: int | None

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Return the numbers that fill `Packing` of kernels.h."""
        packing = self.packing
        return CODES[packing.codes], group_of(packing, self.inputs), SCALES[packing.scales], int(packing.zeros)


def packed_matrix(piece: torch.Tensor, tensor: Tensor) -> PackedMatrix:
    """View the bytes of a block's tensor as the matrix that they are."""
    assert tensor.packing is not None
    made = piece.as_subclass(PackedMatrix)
    made.packing = tensor.packing
    *experts, made.outputs, made.inputs = tensor.shape
    made.experts = experts[0] if experts else None
    return made


def matrices_of(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The matrix of each expert, of a tensor that holds those of all."""
    if not isinstance(tensor, PackedMatrix):
        return tensor.unbind(0)
    assert tensor.experts is not None
    return [_same_form(piece, tensor) for piece in tensor.as_subclass(torch.Tensor).view(tensor.experts, -1)]


def _same_form(piece: torch.Tensor, like: PackedMatrix) -> PackedMatrix:
    """View the bytes of one expert as the matrix that they are."""
    made = piece.as_subclass(PackedMatrix)
    made.packing, made.outputs, made.inputs, made.experts = like.packing, like.outputs, like.inputs, None
    return made


def unpacked(tensor: torch.Tensor) -> torch.Tensor:
    """A packed matrix in bfloat16, `[output, input]`, on its device; any other tensor as it is. Those of several
    experts are `[expert, output, input]`."""
    if not isinstance(tensor, PackedMatrix):
        return tensor
    if tensor.experts is not None:
        return torch.stack([unpacked(one) for one in matrices_of(tensor)])
    packing, outputs, inputs = tensor.packing, tensor.outputs, tensor.inputs
    parts = panel_parts(packing, inputs)
    panels = tensor.as_subclass(torch.Tensor).view(-1, sum(parts))
    scales, zeros, codes = torch.split_with_sizes(panels, parts, dim=1)
    groups = group_count(packing, inputs)
    scale = by_output(scales.contiguous().view(SCALE_TYPES[packing.scales]).view(-1, groups, PANEL_OUTPUTS)).float()
    numbers = _codes(codes, CODE_BITS[packing.codes])[:, :inputs].contiguous()
    if packing.codes == "fp4":
        wide = torch.tensor(FP4_VALUES, device=tensor.device)[numbers.long()]
    elif packing.codes == "fp8":
        wide = numbers.view(torch.float8_e4m3fn).float()
    elif packing.zeros:
        wide = numbers.float() - _each_input(by_output(zeros.reshape(-1, groups, PANEL_OUTPUTS)).float(), tensor)
    else:
        wide = numbers.float() - MIDDLES[packing.codes]
    return (wide * _each_input(scale, tensor))[:outputs].bfloat16()


def by_output(values: torch.Tensor) -> torch.Tensor:
    """`[panel, group, output]` as `[output, group]`."""
    return values.transpose(1, 2).reshape(-1, values.shape[1])


def _each_input(values: torch.Tensor, tensor: PackedMatrix) -> torch.Tensor:
    """What each group has, for each of its inputs."""
    return values.repeat_interleave(group_of(tensor.packing, tensor.inputs), dim=1)[:, : tensor.inputs]


def _codes(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The words of all panels as codes `[output, input]`."""
    panels = len(words)
    lanes = words.reshape(panels, -1, LANES, 4)
    if bits == 4:
        lanes = torch.stack((lanes & 15, lanes >> 4), dim=-1).flatten(3)
    pairs = lanes.transpose(2, 3).reshape(panels, -1, PANEL_OUTPUTS, 2)
    return pairs.transpose(1, 2).reshape(panels * PANEL_OUTPUTS, -1)
