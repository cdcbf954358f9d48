"""Packed matrices: which tensors of a model are packed, the bytes that they take, and the tensors that a checkpoint has
for them. Pure.

A packed matrix lies in panels of 64 outputs, whose form is described in kernels.h. Edges are padded: every matrix can
be packed, whatever its shape."""

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


Shapes = dict[str, list[int]]

WORD_BITS = 32
# Tensors that may be there, and change nothing: shapes that are known, and scales of activations, which stay as they
# are here. The order of inputs is read, as it must be the usual one.
ORDER = ".g_idx"
OPTIONAL = (".weight_shape", ORDER, ".input_scale", ".output_scale", ".activation_scale", ".input_zero_point")
MXFP4 = ("_proj_blocks", "_proj_scales")
ZEROS = ".weight_zero_point"
WORDS = (".qweight", ".qzeros", ".weight_packed", ZEROS)


def stored_parts(quantization: Quantization, packing: Packing, weight: str, shape: list[int]) -> Shapes:
    """The tensors by which a checkpoint has the matrix `weight` of this shape."""
    module = weight.removesuffix(WEIGHT)
    outputs, inputs = shape
    groups = group_count(packing, inputs)
    fields = WORD_BITS // CODE_BITS[packing.codes]
    match quantization.stored:
        case "gptq" | "gptq_v2":
            return {
                f"{module}.qweight": [_words(inputs, fields), outputs],
                f"{module}.qzeros": [groups, _words(outputs, fields)],
                f"{module}.scales": [groups, outputs],
            }
        case "awq":
            return {
                f"{module}.qweight": [inputs, _words(outputs, fields)],
                f"{module}.qzeros": [groups, _words(outputs, fields)],
                f"{module}.scales": [groups, outputs],
            }
    rows = quantization.scale_rows
    scales = {f"{module}{scale_name(quantization)}": [] if rows == 0 else [-(-outputs // rows), groups]}
    if quantization.stored != "packed":
        zeros = {f"{module}.weight_zero_point": [outputs, groups]} if packing.zeros else {}
        return {weight: shape, **scales, **zeros}
    zeros = {f"{module}.weight_zero_point": [_words(outputs, fields), groups]} if packing.zeros else {}
    return {f"{module}.weight_packed": [outputs, _words(inputs, fields)], **scales, **zeros}


def scale_name(quantization: Quantization) -> str:
    """What the name of a matrix's scales ends with."""
    is_block = quantization.stored == "fp8" and quantization.scale_rows != 0
    return ".weight_scale_inv" if is_block else ".weight_scale"


def _words(count: int, fields: int) -> int:
    return -(-count // fields)
