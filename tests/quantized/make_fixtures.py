# mypy: ignore-errors
"""Makes the quantized checkpoints of this folder by other people's code, so that reader and writer share no mistake.

Run it in an environment with torch, transformers, compressed-tensors 0.20, accelerate, and the sources of AutoAWQ 0.2.9
and GPTQModel 7.7.0 unpacked in the folder that is given:

    python tests/quantized/make_fixtures.py SOURCES

Each folder holds a model of one layer, and in `expected.json` the SHA-256 of each matrix in bfloat16, dequantized by
the same people's code in float32.
"""

import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent
HIDDEN, FEATURES, TOKENS = 32, 64, 40
SHAPES = {
    "self_attn.q_proj": (32, HIDDEN),
    "self_attn.k_proj": (32, HIDDEN),
    "self_attn.v_proj": (32, HIDDEN),
    "self_attn.o_proj": (HIDDEN, 32),
    "mlp.gate_proj": (FEATURES, HIDDEN),
    "mlp.up_proj": (FEATURES, HIDDEN),
    "mlp.down_proj": (HIDDEN, FEATURES),
}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": TOKENS,
    "hidden_size": HIDDEN,
    "intermediate_size": FEATURES,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}


def weights(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Everything of the model, not quantized."""
    torch.manual_seed(7)
    layer = "model.layers.0."
    made = {f"{layer}{name}.weight": torch.randn(shape) * 0.3 for name, shape in SHAPES.items()}
    norms = ("input_layernorm", "post_attention_layernorm")
    made |= {f"{layer}{name}.weight": 1 + 0.1 * torch.randn(HIDDEN) for name in norms}
    made["model.norm.weight"] = 1 + 0.1 * torch.randn(HIDDEN)
    made |= {name: torch.randn(TOKENS, HIDDEN) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    return {name: tensor.to(dtype) for name, tensor in made.items()}


def save(name: str, dtype: str, config: dict[str, Any], tensors: dict[str, Any], expected: dict[str, Any]) -> None:
    """Write a checkpoint, and the digest of what its matrices are."""
    directory = HERE / name
    directory.mkdir(exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, directory / "model.safetensors")
    whole = CONFIG | {"dtype": dtype, "quantization_config": config}
    (directory / "config.json").write_text(json.dumps(whole, indent=1) + "\n")
    digests = {
        key: hashlib.sha256(matrix.bfloat16().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for key, matrix in expected.items()
    }
    (directory / "expected.json").write_text(json.dumps(digests, indent=1) + "\n")


def compressed(name: str, form: str, dtype: torch.dtype = torch.bfloat16, **arguments: Any) -> None:
    """A checkpoint by compressed-tensors. Scales and zeros are drawn around those that fit."""
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors, expected = weights(dtype), {}
    for part in SHAPES:
        key = f"model.layers.0.{part}"
        matrix = tensors.pop(f"{key}.weight")
        state = {"weight": matrix, **fitting(matrix, args, dtype)}
        packed = compressor.compress(state, scheme)
        wide = {kind: t.float() if kind == "weight_scale" else t for kind, t in packed.items()}
        expected[key] = compressor.decompress(wide, scheme)["weight"].float()
        tensors |= {f"{key}.{kind}": tensor for kind, tensor in packed.items()}
    group = {"targets": ["Linear"], "weights": args.model_dump(mode="json"), "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    config |= {"ignore": ["lm_head"], "config_groups": {"group_0": group}}
    save(name, str(dtype).removeprefix("torch."), config, tensors, expected)


def fitting(matrix: torch.Tensor, args: QuantizationArgs, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Scales, and zeros where the scheme has some."""
    outputs, inputs = matrix.shape
    wide = matrix.float()
    top = 448.0 if args.type == "float" else 2.0 ** (args.num_bits - 1) - 0.5
    match args.strategy:
        case "group":
            largest = wide.view(outputs, -1, args.group_size).abs().amax(2)
        case "block":
            rows, columns = args.block_structure
            largest = wide.view(outputs // rows, rows, inputs // columns, columns).abs().amax((1, 3))
        case "tensor":
            largest = wide.abs().amax().view(1)
        case _:
            largest = wide.abs().amax(1, keepdim=True)
    made = {"weight_scale": (largest / top).to(dtype)}
    if not args.symmetric:
        made["weight_zero_point"] = torch.randint(-5, 6, largest.shape, dtype=torch.int8)
    return made


def awq(name: str, linear: Any) -> None:
    """A checkpoint by AutoAWQ."""
    from awq.utils.packing_utils import reverse_awq_order, unpack_awq

    tensors, expected, group = weights(torch.float16), {}, 16
    for part, (outputs, inputs) in SHAPES.items():
        key = f"model.layers.0.{part}"
        layer = nn.Linear(inputs, outputs, bias=False)
        layer.weight.data = tensors.pop(f"{key}.weight").float()
        scales = (layer.weight.view(outputs, -1, group).abs().amax(2) / 7).half().t().contiguous()
        zeros = torch.randint(4, 12, scales.shape)
        made = linear.from_linear(layer, 4, group, scales=scales, zeros=zeros)
        tensors |= {f"{key}.{kind}": getattr(made, kind) for kind in ("qweight", "qzeros", "scales")}
        codes, points = reverse_awq_order(*unpack_awq(made.qweight, made.qzeros, 4), 4)
        codes, points = codes & 15, points & 15
        each = (torch.arange(inputs) // group).tolist()
        expected[key] = ((codes.float() - points[each].float()) * made.scales[each].float()).t()
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    save(name, "float16", config, tensors, expected)


def gptq(name: str, linear: Any, bits: int, symmetric: bool, version: str, old: bool) -> None:
    """A checkpoint by GPTQModel, which keeps zeros as they are; in its old form they are less one."""
    tensors, expected, group = weights(torch.float16), {}, 16
    for part, (outputs, inputs) in SHAPES.items():
        key = f"model.layers.0.{part}"
        layer = nn.Linear(inputs, outputs, bias=False)
        layer.weight.data = tensors.pop(f"{key}.weight").float()
        made = object.__new__(linear)
        nn.Module.__init__(made)
        made.bits, made.maxq, made.pack_dtype_bits = bits, 2**bits - 1, 32
        made.pack_factor, made.pack_dtype, made.planar = 32 // bits, torch.int32, False
        import numpy as np

        made.pack_np_math_dtype, made.pack_np_dtype = np.uint32, np.int32
        scales = (layer.weight.view(outputs, -1, group).abs().amax(2) / 2 ** (bits - 1)).half().float()
        middle = 2 ** (bits - 1)
        zeros = torch.full(scales.shape, float(middle))
        if not symmetric:
            zeros = torch.randint(middle - 4, middle + 4, scales.shape).float()
        order = torch.arange(inputs, dtype=torch.int32) // group
        made.pack_original(layer, scales, zeros, order)
        # Only the difference to a product by the module itself would be larger: this is what it says of itself.
        codes = torch.round((layer.weight + (zeros * scales)[:, order.long()]) / scales[:, order.long()])
        codes = codes.clamp(0, 2**bits - 1)
        expected[key] = (codes - zeros[:, order.long()]) * scales[:, order.long()]
        if old:
            from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

            convert_gptq_v2_to_v1_format_module(made, types.SimpleNamespace(bits=bits, pack_dtype=torch.int32))
        tensors |= {f"{key}.{kind}": getattr(made, kind) for kind in ("qweight", "qzeros", "scales", "g_idx")}
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": False}
    save(name, "float16", config | {"checkpoint_format": version}, tensors, expected)


def bare(name: str, path: Path) -> None:
    """A package whose own module is not run, as it imports what nobody needs here."""
    module = types.ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module


if __name__ == "__main__":
    compressed("packed-int4", "pack-quantized", num_bits=4, strategy="group", group_size=16)
    compressed("packed-int4-zeros", "pack-quantized", num_bits=4, strategy="group", group_size=16, symmetric=False)
    compressed("packed-int8", "pack-quantized", num_bits=8, strategy="channel")
    compressed("int8", "int-quantized", torch.float16, num_bits=8, strategy="channel")
    compressed("int8-zeros", "int-quantized", num_bits=8, strategy="channel", symmetric=False)
    compressed("fp8", "float-quantized", num_bits=8, type="float", strategy="channel")
    compressed("fp8-tensor", "float-quantized", num_bits=8, type="float", strategy="tensor")
    compressed("fp8-blocks", "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[16, 16])
    if len(sys.argv) > 1:
        sources = Path(sys.argv[1])
        for package in ("awq", "awq.modules", "awq.modules.linear"):
            bare(package, sources / "autoawq-0.2.9" / package.replace(".", "/"))
        from awq.modules.linear.gemm import WQLinear_GEMM

        awq("awq", WQLinear_GEMM)
        sys.path.insert(0, str(sources / "gptqmodel-7.7.0"))
        from gptqmodel.nn_modules.qlinear import PackableQuantLinear

        gptq("gptq", PackableQuantLinear, 4, symmetric=False, version="gptq", old=True)
        gptq("gptq-v2", PackableQuantLinear, 4, symmetric=False, version="gptq_v2", old=False)
        gptq("gptq-int8", PackableQuantLinear, 8, symmetric=True, version="gptq", old=True)
