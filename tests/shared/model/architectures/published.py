"""Published checkpoints of architectures, as their `config.json` says them."""

import json
from pathlib import Path
from typing import Any

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.architectures import find_architecture
from livescale.shared.model.declaration.config_file import ConfigFile

PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "published.json").read_bytes())


def described(name: str, **changes: object) -> ModelConfig:
    """The model of this checkpoint, with some keys changed."""
    keys = {**PUBLISHED[name], **changes}
    architecture = find_architecture(keys["model_type"])
    assert architecture is not None
    return architecture.describe(ConfigFile(keys))
