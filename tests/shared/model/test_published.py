"""What people download is read as it is: `config.json` of published checkpoints, with every key that their makers left
in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.architectures import model_types
from livescale.shared.model.checkpoint import CheckpointError, load_model_config

PUBLISHED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_bytes())
PIXELS = {
    **{"do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    **{"image_processor_type": "ViTFeatureExtractor", "resample": 2, "rescale_factor": 0.00392156862745098},
    "size": {"height": 224, "width": 224},
}


def read(directory: Path, config: dict[str, Any]) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return load_model_config(directory)


@pytest.mark.parametrize("name", PUBLISHED)
def test_configurations_of_published_checkpoints_are_read(name: str, tmp_path: Path) -> None:
    config, made = PUBLISHED[name], read(tmp_path, PUBLISHED[name])
    assert made.num_hidden_layers == config.get("num_hidden_layers", config.get("n_layer"))
    assert (made.quantization is not None) == ("quantization_config" in config)


def test_there_is_one_of_each_architecture() -> None:
    assert {config["model_type"] for config in PUBLISHED.values()} == {*model_types()} - {"roberta"}


def test_a_context_is_as_long_as_its_makers_say(tmp_path: Path) -> None:
    """Command R has another key for it, and a shorter length where others have theirs."""
    assert read(tmp_path, PUBLISHED["c4ai-command-r-v01"]).max_position_embeddings == 131_072
    assert read(tmp_path, PUBLISHED["aya-expanse-8b"]).max_position_embeddings == 8_192


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("Qwen3-Coder-30B-A3B-Instruct", "shared_expert_intermediate_size", 512),
        ("Qwen3-Coder-30B-A3B-Instruct", "use_qk_norm", False),
        ("Phi-4-mini-instruct", "lm_head_bias", True),
        ("Phi-4-mini-instruct", "interpolate_factor", 2),
        ("c4ai-command-r7b-12-2024", "use_parallel_block", False),
        ("c4ai-command-r7b-12-2024", "position_embedding_type", "rope_neox"),
        ("c4ai-command-r-v01", "use_qk_norm", True),
        ("starcoder2-15b", "mlp_type", "gated"),
    ],
)
def test_what_such_a_key_may_not_say_is_refused_by_name(name: str, key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{key} is '{value}', and '.*' alone is served"):
        read(tmp_path, {**PUBLISHED[name], key: value})
