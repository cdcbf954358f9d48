"""`quantization_config` of config.json: which matrices of a checkpoint are quantized, and how. Pure.

What is quantized in another way than those that are read here is refused by name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.quantization import Codes, Packing, Quantization, ScaleType, StoredAs
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.tensors import ROUTER, Parameter, layer_parameters
from livescale.shared.model.packed.form import WEIGHT

KEYS = ("quantization_config", "compression_config")
REMEDY = "use the checkpoint in bfloat16, or one in AWQ, GPTQ, FP8 or of compressed-tensors"
SUPPORTED = "supported are awq, gptq, fp8, mxfp4 and compressed-tensors"
# How compressed-tensors calls its ways to store a matrix.
FORMATS: dict[str, StoredAs] = {
    "pack-quantized": "packed",
    "int-quantized": "plain",
    "float-quantized": "plain",
    "naive-quantized": "plain",
}
LONGEST_PATTERN, MOST_REPEATS = 200, 4
Module = str
Finds = Callable[[Module], bool]


class _Values:
    """The keys of an object of the file. Raises CheckpointError, which names the key."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self._place = place

    def fail(self, key: str, problem: str, remedy: str = REMEDY) -> CheckpointError:
        return CheckpointError(f"{self._place}: {key} {problem}; {remedy}")

    def whole(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= 1 << 24:
            raise self.fail(key, f"is {str(value)[:80]!r}, must be a whole number")
        return value

    def text(self, key: str, default: str) -> str:
        return str(self.values.get(key, default))[:80]

    def names(self, *keys: str) -> list[str]:
        return [name for key in keys for name in self._list(key) if isinstance(name, str)]

    def _list(self, key: str) -> list[Any]:
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self.fail(key, "must be a list")
        return value

    def object(self, key: str) -> "_Values":
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.fail(key, "must be an object")
        return _Values(value, f"{self._place}.{key}")

    def refuse(self, key: str, problem: str) -> None:
        """Refuse a key that is there and says anything."""
        if self.values.get(key):
            raise self.fail(key, problem)


class _Read:
    """What a configuration says: the packing of a module of the checkpoint, by its name, or None."""

    def __init__(self, stored: StoredAs, packing: Callable[[Module], Packing | None], scale_rows: int = 1) -> None:
        self.stored, self.packing, self.scale_rows = stored, packing, scale_rows


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
    read = _read(_Values(config.mapping(key), key), dtype)
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
    """Whether it is a matrix that is packed where the file says so. Routers are not: hosts dequantize those that are
    quantized, and most files do not say of theirs that they are left out."""
    is_expert = len(parameter.shape) == 3
    return is_expert or (stored != "mxfp4" and len(parameter.shape) == 2 and not parameter.name.endswith(ROUTER))


def _read(values: _Values, dtype: str) -> _Read:
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
            return _compressed(values, dtype)
    raise values.fail("quant_method", f"is {method!r}, which is not served; {SUPPORTED}")


def _gptq(values: _Values, dtype: str) -> _Read:
    codes = _integer(values, values.whole("bits", 4))
    if values.values.get("desc_act") not in (None, False):
        raise values.fail("desc_act", "is true: its inputs are in another order (act-order)", "quantize without it")
    left = _left_out(values)
    values.refuse("lm_head", "is quantized")
    version = values.text("checkpoint_format", values.text("format", "gptq"))
    if version not in ("gptq", "gptq_v2"):
        raise values.fail("checkpoint_format", f"is {version!r}, must be gptq or gptq_v2")
    scales: ScaleType = "float32" if dtype == "float32" else "float16"
    group = _group(values, values.whole("group_size", 128))
    packing = Packing(codes=codes, group=group, scales=scales, zeros=values.values.get("sym", True) is False)
    blocks = values.values.get("modules_in_block_to_quantize") or []
    only = [name for block in blocks for name in (block if isinstance(block, list) else [block])]
    wanted = _ends_with(only) if only else _any_layer
    form: StoredAs = "gptq" if version == "gptq" else "gptq_v2"
    return _Read(form, lambda module: packing if wanted(module) and not left(module) else None)


def _left_out(values: _Values) -> Finds:
    """The modules that GPTQModel's `dynamic` leaves out, by patterns that follow `-:`."""
    rules = values.object("dynamic").values
    if any(not rule.startswith("-:") for rule in rules):
        raise values.fail("dynamic", "quantizes modules unlike each other")
    return _matched([f"re:{rule.removeprefix('-:')}" for rule in rules])


def _awq(values: _Values) -> _Read:
    version = values.text("version", "gemm").lower()
    if version != "gemm" or values.whole("bits", values.whole("w_bit", 4)) != 4:
        raise values.fail("version", f"is {version!r}; 4 bits in the form of gemm are supported")
    group = _group(values, values.whole("group_size", values.whole("q_group_size", 128)))
    packing = Packing(codes="int4", group=group, scales="float16", zeros=True)
    left = values.names("modules_to_not_convert")
    wanted: Finds = lambda module: _any_layer(module) and not any(name in module for name in left)  # noqa: E731
    return _Read("awq", lambda module: packing if wanted(module) else None)


def _fp8(values: _Values) -> _Read:
    if values.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise values.fail("fmt", f"is {values.text('fmt', '')!r}, must be e4m3")
    blocks = values.values.get("weight_block_size") or [0, 0]
    if not isinstance(blocks, list) or len(blocks) != 2 or not all(isinstance(one, int) for one in blocks):
        raise values.fail("weight_block_size", "must be two numbers")
    packing = Packing(codes="fp8", group=_group(values, blocks[1] or -1), scales="float32")
    left = _matched(values.names("modules_to_not_convert", "ignored_layers"))
    return _Read("fp8", lambda module: packing if _any_layer(module) and not left(module) else None, blocks[0])


def _mxfp4(values: _Values) -> _Read:
    """Experts alone, with a power of two as the scale of 32 inputs (OCP Microscaling Formats)."""
    packing = Packing(codes="fp4", group=32, scales="e8m0")
    if any("experts" in name for name in values.names("modules_to_not_convert")):
        raise values.fail("modules_to_not_convert", "leaves out experts, and nothing else is quantized")
    return _Read("mxfp4", lambda module: packing if ".mlp.experts." in module else None)


def _compressed(values: _Values, dtype: str) -> _Read:
    if values.object("sparsity_config").text("format", "dense") != "dense":
        raise values.fail("sparsity_config", "says that matrices are sparse")
    values.refuse("transform_config", "rotates activations")
    ignored = _matched(values.names("ignore"))
    groups: list[tuple[Finds, Packing]] = []
    formats, rows = set[StoredAs](), set[int]()
    every = values.object("config_groups")
    for name in every.values:
        group = every.object(name)
        weights = group.object("weights")
        if not weights.values:
            continue
        stored = FORMATS.get(group.text("format", values.text("format", "")))
        if stored is None:
            raise group.fail("format", f"is {group.text('format', values.text('format', ''))!r}, which is not served")
        packing, scale_rows = _scheme(weights, stored, dtype)
        formats.add(stored)
        rows.add(scale_rows)
        groups.append((_matched(group.names("targets")), packing))
    if len(formats) != 1 or len(rows) != 1:
        raise values.fail("config_groups", "store matrices unlike each other" if formats else "has no weights")

    def packing_of(module: Module) -> Packing | None:
        if ignored(module):
            return None
        return next((packing for matches, packing in groups if matches(module)), None)

    return _Read(formats.pop(), packing_of, rows.pop())


def _scheme(weights: _Values, stored: StoredAs, dtype: str) -> tuple[Packing, int]:
    """A scheme of compressed-tensors, and how many outputs share a scale; 0 is all of them."""
    if weights.text("actorder", "").lower() in ("group", "true"):
        raise weights.fail("actorder", "is group: its inputs are in another order (act-order)", "quantize without it")
    is_float = weights.text("type", "int") == "float"
    bits, symmetric = weights.whole("num_bits", 8), weights.values.get("symmetric", True) is not False
    if is_float and (bits != 8 or not symmetric or stored == "packed"):
        raise weights.fail("num_bits", f"is {bits} of floats; those of 8 are supported")
    codes: Codes = "fp8" if is_float else _integer(weights, bits)
    strategy = weights.text("strategy", "group" if weights.whole("group_size", -1) > 0 else "channel")
    group, rows = -1, 1
    match strategy:
        case "group":
            group = weights.whole("group_size", 128)
        case "channel":
            pass
        case "tensor":
            rows = 0
        case "block":
            blocks = weights.values.get("block_structure")
            if not isinstance(blocks, list) or len(blocks) != 2 or not all(isinstance(one, int) for one in blocks):
                raise weights.fail("block_structure", "must be two numbers")
            rows, group = blocks
        case _:
            raise weights.fail("strategy", f"is {strategy!r}; supported are tensor, channel, group and block")
    scales: ScaleType = "bfloat16" if dtype not in ("float16", "float32") else dtype  # type: ignore[assignment]
    scales = "float32" if is_float else scales
    return Packing(codes=codes, group=_group(weights, group), scales=scales, zeros=not symmetric), rows


def _integer(values: _Values, bits: int) -> Codes:
    if bits not in (4, 8):
        raise values.fail("bits", f"is {bits}; supported are 4 and 8")
    return "int4" if bits == 4 else "int8"


def _group(values: _Values, size: int) -> int:
    """How many inputs share a scale; 0 is all."""
    if size == -1:
        return 0
    if size < 2 or size % 2:
        raise values.fail("group_size", f"is {size}, must be even")
    return size


def _any_layer(module: Module) -> bool:
    return module.startswith("model.layers.")


def _ends_with(names: Sequence[str]) -> Finds:
    return lambda module: _any_layer(module) and any(module.endswith("." + name) for name in names)


def _named(names: Sequence[str]) -> Finds:
    """Whether one of the names is the module's, or that of a module that it is part of."""
    return lambda module: any(f"{module}.".startswith(f"{name}.") or module.endswith(f".{name}") for name in names)


def _matched(targets: Sequence[str]) -> Finds:
    """Whether a target of compressed-tensors means the module: a name, a pattern, or the class of all of them."""
    patterns = [_pattern(target.removeprefix("re:")) for target in targets if target.startswith("re:")]
    names = _named([target for target in targets if not target.startswith("re:")])
    return lambda module: "Linear" in targets or names(module) or any(one.match(module) for one in patterns)


def _pattern(text: str) -> re.Pattern[str]:
    # A pattern that repeats what repeats may take for ever.
    if len(text) > LONGEST_PATTERN or len(re.findall(r"[*+{]", text)) > MOST_REPEATS or re.search(r"\)[*+{]", text):
        raise CheckpointError(f"quantization_config: the pattern {text[:80]!r} is too large; name modules instead")
    try:
        return re.compile(text)
    except re.error as error:
        raise CheckpointError(f"quantization_config: the pattern {text[:80]!r} is none ({error}); {REMEDY}") from None
