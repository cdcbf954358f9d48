"""The tensors that a checkpoint has for a quantized matrix: their names and shapes, by who wrote it. Pure."""

from livescale.shared.messages.quantization import Packing, Quantization
from livescale.shared.model.packed.form import CODE_BITS, WEIGHT, group_count

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
