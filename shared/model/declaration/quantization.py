"""`quantization_config` of config.json: which matrices of a checkpoint are quantized, and how. Pure.

What is quantized in another way than those that are read here is refused by name.
"""

from collections.abc import Callable

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.quantization import Packing, Quantization, ScaleType, StoredAs
from livescale.shared.model.declaration.checked_keys import (
    REMEDY,
    CheckedKeys,
    ModulePackings,
    group_inputs,
    integer_codes,
)
from livescale.shared.model.declaration.compressed_tensors import read_compressed_tensors
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.module_patterns import Finds, Module, ends_with, is_in_a_layer, matched
from livescale.shared.model.declaration.tensors import ROUTER, SHARED_GATE, Parameter, layer_parameters
from livescale.shared.model.packed.form import WEIGHT

KEYS = ("quantization_config", "compression_config")
SUPPORTED = "supported are awq, gptq, fp8, mxfp4 and compressed-tensors"


def read_quantization(
    config: ConfigFile, model: ModelConfig, module_of: Callable[[str], Module]
) -> Quantization | None:
    """How the model's matrices are quantized, where its file says so.

    `module_of` has the checkpoint's name of one of our tensors. Raises CheckpointError.
    """
    key = next((key for key in KEYS if config.mapping(key)), None)
    for other in KEYS:
        config.mapping(other)
    if key is None:
        return None
    dtype = config.text("dtype", config.text("torch_dtype", "bfloat16"))
    read = _read(CheckedKeys(config.mapping(key), key), dtype)
    if read.packing("lm_head") is not None:
        raise CheckpointError(f"{key}: lm_head is quantized, and heads are served in bfloat16; {REMEDY}")
    packings: list[Packing] = []
    kinds: list[dict[str, int]] = []
    layers = []
    for layer in range(model.num_hidden_layers):
        parts = {}
        for one in layer_parameters(model, layer):
            packing = read.packing(module_of(one.name)) if _may_be_packed(one, read.stored) else None
            if packing is not None:
                packings += [packing] if packing not in packings else []
                parts[one.name.split(".", 3)[3].removesuffix(WEIGHT)] = packings.index(packing)
        kinds += [parts] if parts not in kinds else []
        layers.append(kinds.index(parts))
    if not packings:
        return None
    return Quantization(
        stored=read.stored,
        packings=packings,
        parts=kinds,
        layers=layers if len(kinds) > 1 else [],
        scale_rows=read.scale_rows,
    )


def _may_be_packed(parameter: Parameter, stored: StoredAs) -> bool:
    """Whether it is a matrix that is packed where the file says so. Routers and what weighs shared experts are not:
    hosts dequantize the routers that are quantized, and most files do not say of theirs that they are left out."""
    is_expert, is_matrix = len(parameter.shape) == 3, len(parameter.shape) == 2
    return is_expert or (stored != "mxfp4" and is_matrix and not parameter.name.endswith((ROUTER, SHARED_GATE)))


def _read(values: CheckedKeys, dtype: str) -> ModulePackings:
    method = values.text("quant_method", "compressed-tensors" if "config_groups" in values.values else "")
    match method:
        case "gptq":
            return _gptq(values, dtype)
        case "awq":
            return _awq(values)
        case "fp8":
            return _fp8(values)
        case "mxfp4":
            return _mxfp4(values)
        case "compressed-tensors":
            return read_compressed_tensors(values, dtype)
    raise values.fail("quant_method", f"is {method!r}, which is not served; {SUPPORTED}")


def _gptq(values: CheckedKeys, dtype: str) -> ModulePackings:
    codes = integer_codes(values, values.whole("bits", 4))
    if values.values.get("desc_act") not in (None, False):
        raise values.fail("desc_act", "is true: its inputs are in another order (act-order)", "quantize without it")
    left = _left_out(values)
    values.refuse("lm_head", "is quantized")
    version = values.text("checkpoint_format", values.text("format", "gptq"))
    if version not in ("gptq", "gptq_v2"):
        raise values.fail("checkpoint_format", f"is {version!r}, must be gptq or gptq_v2")
    scales: ScaleType = "float32" if dtype == "float32" else "float16"
    group = group_inputs(values, values.whole("group_size", 128))
    packing = Packing(codes=codes, group=group, scales=scales, zeros=values.values.get("sym", True) is False)
    blocks = values.values.get("modules_in_block_to_quantize") or []
    only = [name for block in blocks for name in (block if isinstance(block, list) else [block])]
    wanted = ends_with(only) if only else is_in_a_layer
    form: StoredAs = "gptq" if version == "gptq" else "gptq_v2"
    return ModulePackings(form, lambda module: packing if wanted(module) and not left(module) else None)


def _left_out(values: CheckedKeys) -> Finds:
    """The modules that GPTQModel's `dynamic` leaves out, by patterns that follow `-:`."""
    rules = values.object("dynamic").values
    if any(not rule.startswith("-:") for rule in rules):
        raise values.fail("dynamic", "quantizes modules unlike each other")
    return matched([f"re:{rule.removeprefix('-:')}" for rule in rules])


def _awq(values: CheckedKeys) -> ModulePackings:
    version = values.text("version", "gemm").lower()
    if version != "gemm" or values.whole("bits", values.whole("w_bit", 4)) != 4:
        raise values.fail("version", f"is {version!r}; 4 bits in the form of gemm are supported")
    group = group_inputs(values, values.whole("group_size", values.whole("q_group_size", 128)))
    packing = Packing(codes="int4", group=group, scales="float16", zeros=True)
    # AutoAWQ, which writes these files, leaves out every matrix whose name contains one of these, so that `gate` leaves
    # out gate_proj as well. vLLM and SGLang read them so; transformers takes whole parts of names.
    left = values.names("modules_to_not_convert")
    wanted: Finds = lambda module: is_in_a_layer(module) and not any(name in module for name in left)  # noqa: E731
    return ModulePackings("awq", lambda module: packing if wanted(module) else None)


def _fp8(values: CheckedKeys) -> ModulePackings:
    if values.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise values.fail("fmt", f"is {values.text('fmt', '')!r}, must be e4m3")
    blocks = values.values.get("weight_block_size") or [0, 0]
    if not isinstance(blocks, list) or len(blocks) != 2 or not all(isinstance(one, int) for one in blocks):
        raise values.fail("weight_block_size", "must be two numbers")
    packing = Packing(codes="fp8", group=group_inputs(values, blocks[1] or -1), scales="float32")
    left = matched(values.names("modules_to_not_convert", "ignored_layers"))
    return ModulePackings(
        "fp8", lambda module: packing if is_in_a_layer(module) and not left(module) else None, blocks[0]
    )


def _mxfp4(values: CheckedKeys) -> ModulePackings:
    """Experts alone, with a power of two as the scale of 32 inputs (OCP Microscaling Formats)."""
    packing = Packing(codes="fp4", group=32, scales="e8m0")
    if any("experts" in name for name in values.names("modules_to_not_convert")):
        raise values.fail("modules_to_not_convert", "leaves out experts, and nothing else is quantized")
    return ModulePackings("mxfp4", lambda module: packing if ".mlp.experts." in module else None)
