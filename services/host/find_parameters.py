"""Finds the tensors of a model in the files of its checkpoint, and checks them before any parameter is read."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from livescale.services.host.routers import quantized_shapes
from livescale.services.host.safetensors_files import AGAIN, FLOATS, StoredTensor, named, stored_tensors
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.experts import Stacked
from livescale.shared.model.declaration.tensors import HEAD, Shapes
from livescale.shared.model.packed.stored import MXFP4, OPTIONAL, ORDER, WORDS, ZEROS

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
