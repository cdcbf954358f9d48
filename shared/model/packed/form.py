"""Packed matrices: which tensors of a model are packed, and the bytes that they take. Pure.

A packed matrix lies in panels of 64 outputs, whose form is described in kernels.h. Edges are padded: every matrix can
be packed, whatever its shape.
"""

from livescale.shared.messages.quantization import Codes, Packing, Quantization, ScaleType

PANEL_OUTPUTS, PANEL_INPUTS = 64, 32
CODE_BITS: dict[Codes, int] = {"int4": 4, "int8": 8, "fp8": 8, "fp4": 4}
SCALE_BYTES: dict[ScaleType, int] = {"bfloat16": 2, "float32": 4, "float16": 2, "e8m0": 1, "float32-panel": 4}
ALIGNMENT = 64  # of the parts of a panel, a cache line
# The code of zero, where a matrix has no zeros of its own.
MIDDLES: dict[Codes, int] = {"int4": 8, "int8": 128, "fp8": 0, "fp4": 0}
LAYERS, WEIGHT = "model.layers.", ".weight"


def packing_of(quantization: Quantization | None, tensor: str) -> Packing | None:
    """How this tensor of a model is packed; None where it is not."""
    if quantization is None or not tensor.startswith(LAYERS) or not tensor.endswith(WEIGHT):
        return None
    layer, part = tensor.removeprefix(LAYERS).removesuffix(WEIGHT).split(".", 1)
    return quantization.packing(int(layer), part)


def group_of(packing: Packing, inputs: int) -> int:
    """How many inputs of this matrix share a scale."""
    return packing.group or inputs


def group_count(packing: Packing, inputs: int) -> int:
    """How many scales an output of this matrix has."""
    return -(-inputs // group_of(packing, inputs))


def panel_parts(packing: Packing, inputs: int) -> tuple[int, int, int]:
    """The bytes of a panel's scales, zeros and codes."""
    groups = group_count(packing, inputs)
    padded = -(-inputs // PANEL_INPUTS) * PANEL_INPUTS
    zeros = groups * PANEL_OUTPUTS if packing.zeros else 0
    scales = groups * scales_of_group(packing) * SCALE_BYTES[packing.scales]
    aligned = -(-scales // ALIGNMENT) * ALIGNMENT
    return aligned, zeros, padded * PANEL_OUTPUTS * CODE_BITS[packing.codes] // 8


def scales_of_group(packing: Packing) -> int:
    """How many scales a panel has for a group of inputs."""
    return 1 if packing.scales == "float32-panel" else PANEL_OUTPUTS


def packed_bytes(packing: Packing, outputs: int, inputs: int) -> int:
    """Count the bytes of a packed matrix: codes, scales and zeros."""
    return -(-outputs // PANEL_OUTPUTS) * sum(panel_parts(packing, inputs))
