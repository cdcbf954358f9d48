"""Models of the shapes that people serve are right: published configurations, with fewer layers, features and tokens.

Hidden sizes, heads, experts, rotations and windows stay as their makers left them, so that matrices lie in panels.
"""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from livescale.shared.model.architectures import model_types
from tests.shared.model.test_published import PUBLISHED
from tests.worker.engine.architectures import generates
from tests.worker.engine.models import draw_parameters, needs_kernels
from tests.worker.engine.stored_models import median_errors
from tests.worker.requests import random_prompt

READABLE = [name for name in PUBLISHED if name != "Phi-3-mini-128k-instruct"]  # by transformers, in this spelling
# The first of each architecture, without the quantization of gpt-oss and DeepSeek-V3.
OF_EACH = {
    PUBLISHED[name]["model_type"]: name for name in reversed(READABLE) if generates(PUBLISHED[name]["model_type"])
}
VOCABULARY = 4_096
# As many layers as it takes until there is one of each type; of others there are two.
LAYERS = {"gemma3_text": 6, "exaone4": 4, "cohere2": 4, "olmo3": 4, "smollm3": 4}
# The most that a layer has here of each, so that it fits into memory in float32.
MOST = {
    "intermediate_size": 4_096,
    "moe_intermediate_size": 256,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 128,
    "first_k_dense_replace": 1,
}
PROMPTS = {str(length): random_prompt(length, length, VOCABULARY) for length in (5, 129, 700)}


def smaller(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a model that takes seconds; what it says of each layer is said of those that are left."""
    layers = LAYERS.get(config["model_type"], 2)
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": layers, "n_layer": layers} | ends
    most = {key: min(config[key], limit) for key, limit in MOST.items() if config.get(key)}
    cut = {key: config[key][:layers] for key in ("layer_types", "no_rope_layers") if config.get(key)}
    left = {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
    return left | {key: size for key, size in sizes.items() if key in config} | most | cut


def save(directory: Path, config: dict[str, Any]) -> None:
    """Save a random model, under the configuration as it was published."""
    file = directory / "config.json"
    file.write_text(json.dumps(config))
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(directory), dtype=torch.bfloat16
    )
    draw_parameters(model)
    model.save_pretrained(directory)
    file.write_text(json.dumps(config))


def test_there_is_one_of_each_architecture_that_generates() -> None:
    assert {*OF_EACH} == {one for one in model_types() if generates(one)}


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("name", OF_EACH.values())
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    save(tmp_path, smaller(PUBLISHED[name]))
    ours, theirs = median_errors(tmp_path, PROMPTS, max_tokens=4)
    gc.collect()  # models of gigabytes, in circles
    assert ours <= 1.5 * theirs
