"""Which file of a checkpoint holds which tensor, checked against the model's blocks.

The index may name files of its own directory only. Symbolic links are followed wherever they lead, because the hub's
cache is made of them: whoever may write into the directory may serve any file that has a checkpoint's form.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

from livescale.services.host.safetensors_file import AGAIN, StoredTensor, read_header
from livescale.shared.model.block_layout import Shapes
from livescale.shared.model.checkpoint import CheckpointError, read_file

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HEAD = "lm_head.weight"
INDEX_LIMIT_BYTES = 16 << 20
MAX_NAMED = 5
LONGEST_NAMED = 256


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def find_tensors(directory: Path, shapes: Shapes) -> dict[str, StoredTensor]:
    """Every tensor of `shapes`, and nothing else but what a tied head repeats. Raises CheckpointError."""
    stored = _stored(directory)
    missing = [name for name in shapes if name not in stored]
    if missing:
        raise CheckpointError(f"{directory}: tensors missing from the safetensors files: {_some(missing)}; {AGAIN}")
    for name, shape in shapes.items():
        if list(stored[name].shape) != shape:
            raise CheckpointError(
                f"{stored[name].file}: {name} has shape {list(stored[name].shape)}, config.json makes it {shape}; "
                "use the config.json that belongs to these files"
            )
    # inv_freq was once saved with Llama checkpoints; it follows from the configuration.
    unused = [
        name for name in stored if name not in shapes and name != HEAD and not name.endswith("rotary_emb.inv_freq")
    ]
    if unused:
        raise CheckpointError(
            f"{stored[unused[0]].file}: tensors that the architecture of config.json does not use: {_some(unused)}; "
            "use the config.json that belongs to these files"
        )
    used = {name: tensor for name, tensor in stored.items() if name in shapes or name == HEAD}
    _refuse_overlap(used)
    return used


def _refuse_overlap(stored: Mapping[str, StoredTensor]) -> None:
    ordered = sorted(stored.values(), key=lambda one: (one.file, one.start, one.size_bytes))
    for before, tensor in pairwise(ordered):
        if tensor.file == before.file and tensor.start < before.start + before.size_bytes:
            raise CheckpointError(f"{tensor.file}: {tensor.name} overlaps {before.name}; {AGAIN}")


def _stored(directory: Path) -> Mapping[str, StoredTensor]:
    if (directory / INDEX).exists():
        return _sharded(directory)
    if (directory / SINGLE).exists():
        return read_header(directory / SINGLE)
    pickled = any(directory.glob("*.bin"))
    remedy = "convert its *.bin files to safetensors" if pickled else AGAIN
    raise CheckpointError(f"{directory}: has neither {SINGLE} nor {INDEX}; {remedy}")


def _sharded(directory: Path) -> Mapping[str, StoredTensor]:
    path = directory / INDEX
    try:
        weight_map = msgspec.json.decode(read_file(path, INDEX_LIMIT_BYTES), type=_Index).weight_map
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {AGAIN}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}; {AGAIN}") from None
    names = sorted(set(weight_map.values()))
    for name in names:
        # A checkpoint must not make us read other files of this machine.
        if Path(name).name != name or {*"\0\\"} & {*name} or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{path}: {name[:LONGEST_NAMED]!r} is not the name of a safetensors file beside it; {AGAIN}"
            )
    headers = {name: read_header(directory / name) for name in names}
    absent = [tensor for tensor, name in weight_map.items() if tensor not in headers[name]]
    if absent:
        file = directory / weight_map[absent[0]]
        raise CheckpointError(f"{file}: lacks tensors that {INDEX} places there: {_some(absent)}; {AGAIN}")
    return {tensor: headers[name][tensor] for tensor, name in weight_map.items()}


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(name[:LONGEST_NAMED] for name in names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
