"""What gateways and hosts would refuse of a checkpoint, before anything is started."""

import importlib
import time
from pathlib import Path

import click

from livescale.services.supervisor.checks import BadSettings, check_path
from livescale.services.supervisor.model_sizes import find_files
from livescale.services.supervisor.settings import ModelSettings
from livescale.shared.model.block_layout import block_shapes
from livescale.shared.model.checkpoint import load_model_config


def check_checkpoint(model: ModelSettings) -> None:
    """Its configuration, its tokenizer and chat template, and which tensors its files say that they have; of a hub id,
    which is fetched for that, all but the last. Raises UsageError."""
    # By name, as `livescale run` knows the services.
    text = importlib.import_module("livescale.services.gateway.checkpoint_text")
    files = importlib.import_module("livescale.services.host.checkpoint_files")
    try:
        check_path(model)
        directory = find_files(model)
        config = load_model_config(directory)
        if Path(model.path).is_dir():
            shapes = {name: shape for block in block_shapes(config).values() for name, shape in block.items()}
            files.find_tensors(directory, shapes)
        text.load_checkpoint_text(directory, time.time)
    except BadSettings as error:
        raise click.UsageError(str(error)) from None
    except (ValueError, text.BadCheckpoint) as error:
        raise click.UsageError(f"model {model.name!r}: {error}") from None
