"""Made checkpoints for tests: each is made once a run and never changed (copy it first)."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from livescale.shared.messages.parameters import Family

if TYPE_CHECKING:
    from tokenizers import Tokenizer

KEPT = shutil.ignore_patterns("*.packed", "*.manifest.json")  # what hosts leave beside it
TRANSCRIPTS = Path(__file__).parents[1] / "examples" / "transcripts.jsonl"
FAMILIES: tuple[Family, ...] = ("llama", "qwen2")


def tiny_checkpoint(family: Family) -> Path:
    """Llama is sharded and has a head of its own; Qwen2 is a single file with a tied head."""
    from livescale.load.make_model import make_model  # of torch, which takes seconds to import

    return make_model(made_directory() / family, family, "tiny", seed=7)


def pooling_checkpoint(
    family: Family, to: Path, pooling: str = "lasttoken", config: Mapping[str, object] | None = None
) -> Path:
    """A copy that says as sentence-transformers do how it pools, unless `config`, which is added to its config.json,
    names another use."""
    from livescale.load.make_model import make_model

    made = make_model(made_directory() / family, family, "tiny", seed=7)
    directory = Path(shutil.copytree(made, to / f"{family}-{pooling}", ignore=KEPT))
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {**(config or {})}))
    if not config:
        write_pooling(directory, pooling)
    return directory


def write_pooling(directory: Path, pooling: str = "lasttoken", *, normalized: bool = True) -> None:
    """Write the files by which sentence-transformers say how a checkpoint pools."""
    named = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalized else [])]
    modules = [{"path": path, "type": f"sentence_transformers.models.{type}"} for path, type in named]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{one}": one == pooling for one in ("cls_token", "mean_tokens", "lasttoken")}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 192, **modes}))


def taught_checkpoint() -> Path:
    """One that has learned `TRANSCRIPTS`, which takes a core some ten seconds. It calls tools and reasons."""
    from livescale.load.make_model import make_model

    return make_model(made_directory() / "taught", "qwen2", "tiny", 7, TRANSCRIPTS)


def token_id(tokenizer: "Tokenizer", token: str) -> int:
    """The id of a token that the tokenizer has."""
    id = tokenizer.token_to_id(token)
    assert id is not None, token
    return id


def copy_checkpoint(family: Family, to: Path) -> Path:
    """Copy a checkpoint, for a test that spoils it."""
    return Path(shutil.copytree(tiny_checkpoint(family), to / f"{family}-copy", ignore=KEPT))


@cache
def made_directory() -> Path:
    """A directory that is removed when this process ends."""
    directory = Path(tempfile.mkdtemp(prefix="livescale-made-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def other_shape(family: Family, to: Path, **config: int) -> Path:
    """A copy of the tiny one with other sizes in its config.json, and parameters drawn anew."""
    import torch
    from safetensors.torch import save_file

    from livescale.load.random_parameters import RandomParameters
    from livescale.shared.model.architectures import architecture_of
    from livescale.shared.model.checkpoint import load_model_config

    shutil.copytree(tiny_checkpoint(family), to, ignore=KEPT)
    (to / "config.json").write_text(json.dumps(json.loads((to / "config.json").read_text()) | config))
    model = load_model_config(to)
    drawn, shapes = RandomParameters(model, seed=7), architecture_of(model).stored_shapes(model)
    tensors = {name: drawn.draw(name, torch.Size(shape)) for name, shape in shapes.items()}
    save_file(tensors, to / "model.safetensors")
    return to
