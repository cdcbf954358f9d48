"""Finds the tensors of a model in the files of its checkpoint, and checks them before any parameter is read.

Routers of experts may be quantized there, which is seen from the tensors: most files with quantized experts do not say
of routers. They are small, and engines compute them in float32. So hosts dequantize them, to what they would be in the
same checkpoint in bfloat16."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from livescale.services.host.conversion import convert
from livescale.services.host.quantized import QuantizedReader
from livescale.services.host.safetensors_files import AGAIN, FLOATS, StoredTensor, named, stored_tensors
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.quantization import Packing
from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.experts import Stacked
from livescale.shared.model.declaration.tensors import HEAD, ROUTER, Shapes, Source
from livescale.shared.model.packed.form import MXFP4, OPTIONAL, ORDER, WORDS, ZEROS, stored_parts

# Tensors that were once saved with checkpoints, and follow from the configuration.
HARMLESS = ("rotary_emb.inv_freq", "embeddings.position_ids", ".attn.bias", ".attn.masked_bias", *OPTIONAL)


def find_parameters(directory: Path, config: ModelConfig) -> dict[str, StoredTensor]:
    """Find all tensors of the model in its files. Raises CheckpointError."""
    architecture = architecture_of(config)
    shapes, stacked = architecture.stored_shapes(config), architecture.stacked(config)
    return find_tensors(directory, shapes, stacked, architecture.unneeded(config), quantized_shapes(config))


def find_tensors(
    directory: Path,
    shapes: Shapes,
    stacked: Mapping[str, Stacked] = {},
    unneeded: tuple[str, ...] = (),
    otherwise: Mapping[str, Shapes] = {},
) -> dict[str, StoredTensor]:
    """Find every tensor of `shapes`, and the head where a checkpoint repeats a tied one. Tensors may lie in others as
    `stacked` says, or be all of those that `otherwise` has for them. Names that begin with one of the `unneeded` are
    passed over.

    Raises CheckpointError where one is missing or has another shape, and for tensors that the model does not use.
    """
    stored = _taken_apart(_whole_names(stored_tensors(directory), shapes), shapes, stacked)
    for name, parts in otherwise.items():
        if parts.keys() <= stored.keys():
            shapes = {key: shape for key, shape in shapes.items() if key != name} | parts
    missing = [name for name in shapes if name not in stored]
    if missing:
        raise CheckpointError(f"{directory}: tensors missing from the safetensors files: {named(missing)}; {AGAIN}")
    for name, shape in shapes.items():
        if list(stored[name].shape) != shape and not (shape == [] and stored[name].shape == (1,)):
            raise CheckpointError(
                f"{stored[name].file}: {name} has shape {list(stored[name].shape)}, config.json makes it {shape}; "
                "use the config.json that belongs to these files"
            )
        _check_dtype(stored[name], shapes)
    unused = [
        name
        for name in stored
        if name not in shapes and name != HEAD and not name.startswith(unneeded) and not name.endswith(HARMLESS)
    ]
    if unused:
        raise CheckpointError(
            f"{stored[unused[0]].file}: tensors that the architecture of config.json does not use: {named(unused)}; "
            "use the config.json that belongs to these files"
        )
    used = {name: tensor for name, tensor in stored.items() if name in shapes or name == HEAD or name.endswith(ORDER)}
    _refuse_overlap(used)
    return used


def _whole_names(stored: Mapping[str, StoredTensor], shapes: Shapes) -> Mapping[str, StoredTensor]:
    """The tensors by the names that they have in a whole model: a base model's files leave out its own name."""
    base = next(iter(shapes), "").partition(".")[0] + "."
    if any(name.startswith(base) for name in stored):
        return stored
    return {base + name if base + name in shapes else name: tensor for name, tensor in stored.items()}


def _taken_apart(
    stored: Mapping[str, StoredTensor], shapes: Shapes, stacked: Mapping[str, Stacked]
) -> Mapping[str, StoredTensor]:
    """The tensors with the parts of those of all experts in their place."""
    parts = {
        name: stored[where.name].all_rows().rows(where.start, where.start + where.rows)
        for name, where in stacked.items()
        if name not in stored and where.name in stored and list(stored[where.name].shape) == where.shape
    }
    whole = {stacked[name].name for name in parts} - shapes.keys()
    return {name: tensor for name, tensor in stored.items() if name not in whole} | parts


def _check_dtype(tensor: StoredTensor, shapes: Shapes) -> None:
    """Refuse a tensor that is no number of the kind that it should be."""
    wanted = FLOATS
    if tensor.name.endswith(MXFP4):
        wanted = ("U8",)
    elif tensor.name.endswith(WORDS):
        wanted = ("I32", "I8") if tensor.name.endswith(ZEROS) else ("I32",)
    elif any(f"{tensor.name}{scale}" in shapes for scale in ("_scale", "_scale_inv")):
        wanted = ("F8_E4M3", "I8")
    if tensor.dtype not in wanted:
        supported = ", ".join(wanted)
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} is {tensor.dtype}; supported are {supported}: convert the checkpoint"
        )


def _refuse_overlap(stored: Mapping[str, StoredTensor]) -> None:
    ordered = sorted(stored.values(), key=lambda one: (one.file, one.start, one.size_bytes))
    for before, tensor in pairwise(ordered):
        if tensor.file == before.file and tensor.start < before.start + before.size_bytes:
            raise CheckpointError(f"{tensor.file}: {tensor.name} overlaps {before.name}; {AGAIN}")


EXPERTS = ("mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj")


def router_packing(config: ModelConfig, layer: int) -> Packing | None:
    """How the router of this layer is packed, if it is: as the experts are. What it is in MXFP4 is not known."""
    quantization = config.quantization
    if quantization is None or quantization.stored == "mxfp4" or not config.kind(layer).experts:
        return None
    return next(filter(None, (quantization.packing(layer, part) for part in EXPERTS)), None)


def read_router(name: str, source: Source, config: ModelConfig, reader: QuantizedReader, into: memoryview) -> bool:
    """Fill `into` with our tensor `name` in bfloat16, if that is a router whose file has it quantized.

    Raises CheckpointError.
    """
    if not name.endswith(ROUTER):
        return False
    packing = router_packing(config, int(name.split(".")[2]))
    if packing is None or not reader.has(_parts(config, packing, source.name)):
        return False
    wide = reader.dequantized(source, config.hidden_size, packing)
    convert(wide.view(np.uint32).reshape(-1), "F32", "bfloat16", np.frombuffer(into, np.uint16))
    return True


def quantized_shapes(config: ModelConfig) -> dict[str, Shapes]:
    """The tensors by which a checkpoint may have each router, by the name of the one that others have."""
    packings = {layer: router_packing(config, layer) for layer in range(config.num_hidden_layers)}
    names = {layer: f"model.layers.{layer}{ROUTER}" for layer, packing in packings.items() if packing is not None}
    sources = architecture_of(config).sources(config) if names else {}
    found = {sources[name].name: packings[layer] for layer, name in names.items()}
    return {name: _parts(config, packing, name) for name, packing in found.items() if packing is not None}


def _parts(config: ModelConfig, packing: Packing, name: str) -> Shapes:
    assert config.quantization is not None
    assert config.experts is not None
    return stored_parts(config.quantization, packing, name, [config.experts.count, config.hidden_size])
