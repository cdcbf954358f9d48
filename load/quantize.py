"""Quantizes the matrices of made checkpoints, in forms that people have theirs in."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from livescale.load.sizes import Quantized

BLOCK = 128
LARGEST_FP8 = 448.0
WEIGHT, GATE = ".weight", "gate.weight"  # of routers, and what weighs shared experts
FP4_BLOCK = 32  # inputs that share a scale
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4_LEFT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def is_quantized(name: str, shape: Sequence[int]) -> bool:
    """Whether this tensor of a checkpoint is a matrix that is quantized: head, embedding, routers and what
    weighs shared experts are not."""
    return name.startswith("model.layers.") and len(shape) == 2 and not name.endswith(GATE)


def group_of(shapes: Mapping[str, Sequence[int]]) -> int:
    """The largest group of inputs that fills the matrices of all layers."""
    widths = [shape[1] for name, shape in shapes.items() if is_quantized(name, shape)]
    return next(size for size in (128, 64, 32, 16, 8, 4, 2) if all(width % size == 0 for width in widths))


def quantization_config(how: Quantized, group: int) -> dict[str, Any]:
    """Return what config.json says of a checkpoint that is quantized so."""
    if how == "mxfp4":
        return {"quant_method": "mxfp4", "modules_to_not_convert": MXFP4_LEFT}
    if how == "fp8":
        left = ["lm_head", "gate", "shared_expert_gate"]
        blocks = {"weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": left}
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", **blocks}
    bits = {"num_bits": 4, "strategy": "group", "group_size": group} if how == "int4" else {"strategy": "channel"}
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, **bits}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized" if how == "int4" else "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head", r"re:.*gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


def quantize_all(how: Quantized, tensors: Mapping[str, torch.Tensor], group: int) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint with its matrices quantized."""
    made: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if how == "mxfp4":
            is_of_experts = ".mlp.experts." in name and tensor.dim() == 3
            made |= quantize_experts(name, tensor) if is_of_experts else {name: tensor}
            continue
        made |= quantize(how, name, tensor, group) if is_quantized(name, tensor.shape) else {name: tensor}
    return made


def quantize_experts(name: str, matrices: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors that a checkpoint of gpt-oss has in place of `[expert, input, output]`: two codes a byte."""
    experts, inputs, outputs = matrices.shape
    groups = matrices.float().transpose(1, 2).reshape(experts, outputs, inputs // FP4_BLOCK, FP4_BLOCK)
    # The largest number of a block is at most 6 after its scale, a power of two, is taken out.
    exponents = (groups.abs().amax(3, keepdim=True) / FP4_VALUES[-1]).log2().ceil().clamp(-120, 120)
    scaled, values = groups / 2.0**exponents, torch.tensor(FP4_VALUES)
    nearest = torch.bucketize(scaled.abs().contiguous(), (values[1:] + values[:-1]) / 2)
    codes = (nearest + 8 * (scaled < 0)).to(torch.uint8)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    scales = (exponents.squeeze(3) + 127).to(torch.uint8)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}


def quantize(how: Quantized, name: str, matrix: torch.Tensor, group: int) -> dict[str, torch.Tensor]:
    """The tensors that a checkpoint has in place of the matrix `name`, `[output, input]`."""
    module, wide = name.removesuffix(WEIGHT), matrix.float()
    match how:
        case "int4":
            groups = wide.view(len(wide), -1, group)
            scales = (groups.abs().amax(2) / 7.5).bfloat16()
            codes = (groups / scales.float()[:, :, None]).round().clamp(-8, 7).to(torch.int32).view(wide.shape) + 8
            words = (codes.view(len(wide), -1, 8) << torch.arange(0, 32, 4)).sum(2).to(torch.int32)
            shape = torch.tensor(wide.shape)
            packed = {"weight_packed": words, "weight_scale": scales, "weight_shape": shape}
            return {f"{module}.{kind}": tensor for kind, tensor in packed.items()}
        case "int8":
            scales = (wide.abs().amax(1, keepdim=True) / 127).bfloat16()
            codes = (wide / scales.float()).round().clamp(-128, 127).to(torch.int8)
            return {name: codes, f"{module}.weight_scale": scales}
    rows, columns = (-(-size // BLOCK) for size in wide.shape)
    padded = pad(wide, (0, columns * BLOCK - wide.shape[1], 0, rows * BLOCK - wide.shape[0]))
    blocks = padded.view(rows, BLOCK, columns, BLOCK)
    scales = blocks.abs().amax((1, 3)) / LARGEST_FP8
    codes = (blocks / scales[:, None, :, None]).view(padded.shape)[: len(wide), : wide.shape[1]]
    return {name: codes.to(torch.float8_e4m3fn).contiguous(), f"{module}.weight_scale_inv": scales}
