"""What the files of sentence-transformers say of a checkpoint: how a vector is made of the model's rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from livescale.shared.messages.parameters import Pooling
from livescale.shared.model.checkpoint_files import decode_file
from livescale.shared.model.declaration.config_file import CheckpointError

MODULES = "modules.json"
# The keys by which a pooling says what it is, and what is served of it.
MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
NAMES: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}


class _Module(msgspec.Struct, frozen=True):
    type: str
    path: Annotated[str, Meta(max_length=256)] = ""


@dataclass(frozen=True)
class SentenceModel:
    """How rows become a vector: by this `pooling`, and scaled to the length 1 where it is `normalized`."""

    pooling: Pooling
    normalized: bool


def read_sentence_model(directory: Path) -> SentenceModel | None:
    """What the files say; None where there are none, or none that pools. Raises CheckpointError for a module that is
    not served."""
    path = directory / MODULES
    if not path.exists():
        return None
    pooling: Pooling | None = None
    normalized = False
    for module in decode_file(path, list[_Module]):
        match module.type.rpartition(".")[2]:
            case "Transformer":
                continue
            case "Pooling" if pooling is None:
                pooling = _pooling(directory / _plain(path, module.path) / "config.json")
            case "Normalize":
                normalized = True
            case kind:
                raise CheckpointError(
                    f"{path}: a module {kind[:80]!r} is not served; supported are Transformer, Pooling and Normalize, "
                    "each once"
                )
    return None if pooling is None else SentenceModel(pooling, normalized)


def _pooling(path: Path) -> Pooling:
    said = decode_file(path, dict[str, Any])
    name = said.get("pooling_mode")
    asked = [name] if isinstance(name, str) else [key for key in said if key.startswith("pooling_mode_") and said[key]]
    found = [MODES.get(one) or NAMES.get(one) for one in asked]
    if len(found) != 1 or found[0] is None:
        raise CheckpointError(
            f"{path}: pooling by {', '.join(asked)[:200] or 'nothing'} is not served; supported is one of "
            f"{', '.join(MODES)}"
        )
    return found[0]


def _plain(path: Path, name: str) -> str:
    """The name of a directory inside the checkpoint."""
    if Path(name).name != name or "\0" in name:
        raise CheckpointError(f"{path}: {name[:80]!r} is not the name of a directory beside it")
    return name
