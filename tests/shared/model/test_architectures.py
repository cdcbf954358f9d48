"""Declarations: found by being there, short, and agreeing with transformers' checkpoints."""

from pathlib import Path

import pytest
import torch
import transformers

from livescale.shared.model.architectures import find_architecture, model_types
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.use import read_use
from tests.worker.engine.architectures import ENCODERS, fields_of, generates

ROOT = Path(__file__).parents[3]


def config_of(model_type: str) -> ConfigFile:
    made = transformers.AutoConfig.for_model(model_type, **fields_of(model_type)).to_dict()
    return ConfigFile(made)


@pytest.mark.parametrize("model_type", model_types())
def test_a_declaration_has_fewer_than_100_lines(model_type: str) -> None:
    assert len((ROOT / f"shared/model/architectures/{model_type.replace('-', '__')}.py").read_text().splitlines()) < 100


@pytest.mark.parametrize("model_type", [one for one in model_types() if generates(one)])
def test_a_checkpoint_has_the_tensors_that_transformers_has(model_type: str) -> None:
    architecture = find_architecture(model_type)
    assert architecture is not None
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(model_type, **fields_of(model_type))
        )
    saved = {name: one for name, one in model.named_buffers() if name in model.state_dict()}
    theirs = {name: list(one.shape) for name, one in (dict(model.named_parameters()) | saved).items()}
    config = architecture.describe(config_of(model_type))
    # In memory transformers has the matrices of all experts as one.
    stacked = architecture.stacked(config)
    ours = [
        (stacked[name].name, stacked[name].shape) if name in stacked else (name, shape)
        for name, shape in architecture.stored_shapes(config).items()
    ]
    assert dict(ours) == theirs
    assert type(model).__name__ == architecture.class_name


@pytest.mark.parametrize("use", ["AutoModel", "AutoModelForSequenceClassification"])
@pytest.mark.parametrize("model_type", ENCODERS)
def test_an_encoder_s_checkpoint_has_the_tensors_that_transformers_has(model_type: str, use: str) -> None:
    """But for what nothing needs. A model without a head leaves out its own name."""
    architecture = find_architecture(model_type)
    assert architecture is not None
    config = transformers.AutoConfig.for_model(model_type, **fields_of(model_type))
    with torch.device("meta"):
        model = getattr(transformers, use).from_config(config)
    theirs = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    made = read_use(ConfigFile({**config.to_dict(), "architectures": [type(model).__name__]}), architecture, None)
    ours = architecture.stored_shapes(made)
    if use == "AutoModel":
        base = next(iter(ours)).partition(".")[0]
        ours = {name.removeprefix(f"{base}."): shape for name, shape in ours.items()}
        assert type(model).__name__ == architecture.class_name
    needed = {name: shape for name, shape in theirs.items() if name in ours or not name.startswith(architecture.unused)}
    assert ours == needed


@pytest.mark.parametrize("model_type", model_types())
def test_every_key_that_transformers_writes_is_read_or_harmless(model_type: str) -> None:
    architecture, config = find_architecture(model_type), config_of(model_type)
    assert architecture is not None
    architecture.describe(config)
    config.refuse_unread()


@pytest.mark.parametrize("model_type", model_types())
def test_a_key_that_nobody_knows_is_refused_by_name(model_type: str) -> None:
    architecture = find_architecture(model_type)
    assert architecture is not None
    made = transformers.AutoConfig.for_model(model_type, **fields_of(model_type)).to_dict()
    config = ConfigFile({**made, "rope_of_tomorrow": 2})
    architecture.describe(config)
    with pytest.raises(CheckpointError, match="'rope_of_tomorrow' is not known"):
        config.refuse_unread()


@pytest.mark.parametrize("model_type", model_types())
def test_transformers_takes_what_is_written_of_made_models(model_type: str) -> None:
    architecture = find_architecture(model_type)
    assert architecture is not None
    made = transformers.AutoConfig.for_model(model_type, **architecture.example)
    assert made.to_dict()["model_type"] == model_type
