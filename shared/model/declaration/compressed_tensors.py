"""`quantization_config` as compressed-tensors writes it: groups of modules, each with a scheme of its own. Pure."""

from livescale.shared.messages.quantization import Codes, Packing, ScaleType, StoredAs
from livescale.shared.model.declaration.checked_keys import CheckedKeys, ModulePackings, group_inputs, integer_codes
from livescale.shared.model.declaration.module_patterns import Finds, Module, matched

# How compressed-tensors calls its ways to store a matrix.
FORMATS: dict[str, StoredAs] = {
    "pack-quantized": "packed",
    "int-quantized": "plain",
    "float-quantized": "plain",
    "naive-quantized": "plain",
}


def read_compressed_tensors(values: CheckedKeys, dtype: str) -> ModulePackings:
    """How the groups of `config_groups` are packed. Raises CheckpointError where they are stored unlike each other."""
    if values.object("sparsity_config").text("format", "dense") != "dense":
        raise values.fail("sparsity_config", "says that matrices are sparse")
    values.refuse("transform_config", "rotates activations")
    ignored = matched(values.names("ignore"))
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
        groups.append((matched(group.names("targets")), packing))
    if len(formats) != 1 or len(rows) != 1:
        raise values.fail("config_groups", "store matrices unlike each other" if formats else "has no weights")

    def packing_of(module: Module) -> Packing | None:
        if ignored(module):
            return None
        return next((packing for matches, packing in groups if matches(module)), None)

    return ModulePackings(formats.pop(), packing_of, rows.pop())


def _scheme(weights: CheckedKeys, stored: StoredAs, dtype: str) -> tuple[Packing, int]:
    """A scheme of compressed-tensors, and how many outputs share a scale; 0 is all of them."""
    if weights.text("actorder", "").lower() in ("group", "true"):
        raise weights.fail("actorder", "is group: its inputs are in another order (act-order)", "quantize without it")
    is_float = weights.text("type", "int") == "float"
    bits, symmetric = weights.whole("num_bits", 8), weights.values.get("symmetric", True) is not False
    if is_float and (bits != 8 or not symmetric or stored == "packed"):
        raise weights.fail("num_bits", f"is {bits} of floats; those of 8 are supported")
    codes: Codes = "fp8" if is_float else integer_codes(weights, bits)
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
    return Packing(codes=codes, group=group_inputs(weights, group), scales=scales, zeros=not symmetric), rows
