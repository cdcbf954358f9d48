"""Configurations of small models of many shapes."""

from collections.abc import Callable
from typing import Any, Literal

import transformers

from livescale.shared.model.architectures import model_types
from tests.worker.engine.architectures import (
    LLAMA3,
    config_of,
    fields_of,
    generates,
    other_fields,
    panel_fields,
)
from tests.worker.requests import CONTEXT

Config = Callable[[], "transformers.PreTrainedConfig"]


def _config(kind: Literal["LlamaConfig", "Qwen2Config"], **fields: Any) -> Config:
    """It is made when it is asked for, as the modules of transformers take seconds to import."""
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    shape = {"num_hidden_layers": 2, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, **ends, **fields}
    return lambda: getattr(transformers, kind)(**shape)


# Odd on purpose: heads that do not make up the hidden size, vocabularies that are no power of two.
CONFIGS: dict[str, Config] = {
    "llama2-untied": _config(
        "LlamaConfig",
        vocab_size=1_003,
        hidden_size=64,
        intermediate_size=172,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        tie_word_embeddings=False,
    ),
    "llama3-scaled-tied": _config(
        "LlamaConfig",
        vocab_size=517,
        hidden_size=60,
        intermediate_size=100,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=20,
        tie_word_embeddings=True,
        rope_parameters=LLAMA3,
    ),
    "qwen2-tied": _config(
        "Qwen2Config",
        vocab_size=771,
        hidden_size=70,
        intermediate_size=131,
        num_attention_heads=7,
        num_key_value_heads=1,
        head_dim=10,
        tie_word_embeddings=True,
        num_hidden_layers=3,
    ),
    "qwen2-untied": _config(
        "Qwen2Config",
        vocab_size=640,
        hidden_size=96,
        intermediate_size=96,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        tie_word_embeddings=False,
    ),
}

# Those of their matrices that fill panels can lie in them: of the second, keys and values do not.
PANEL_CONFIGS: dict[str, Config] = {
    "llama-panels-untied": _config(
        "LlamaConfig",
        vocab_size=640,
        hidden_size=128,
        intermediate_size=192,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=False,
    ),
    "qwen2-panels-tied": _config(
        "Qwen2Config",
        vocab_size=515,
        hidden_size=128,
        intermediate_size=320,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=True,
    ),
}

# These can be cut for two ranks and for four: each with keys of its own, or sharing them.
CUT_CONFIGS: dict[str, Config] = {
    "llama-cut-untied": _config(
        "LlamaConfig",
        vocab_size=1_003,
        hidden_size=64,
        intermediate_size=176,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=16,
        tie_word_embeddings=False,
    ),
    "qwen2-cut-tied": _config(
        "Qwen2Config",
        vocab_size=517,
        hidden_size=72,
        intermediate_size=100,
        num_attention_heads=12,
        num_key_value_heads=2,
        head_dim=6,
        tie_word_embeddings=True,
    ),
}

# FlashInfer has kernels for heads of this size.
GPU_CONFIGS: dict[str, Config] = {
    "llama-heads-of-64": _config(
        "LlamaConfig",
        vocab_size=1_003,
        hidden_size=192,
        intermediate_size=344,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=False,
    ),
}

ONE_LAYER: dict[str, Config] = {
    "llama-one-layer": _config(
        "LlamaConfig",
        vocab_size=600,
        hidden_size=40,
        intermediate_size=72,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=20,
        tie_word_embeddings=False,
        num_hidden_layers=1,
    ),
}

# One of each architecture.
SMALL_CONFIGS: dict[str, Config] = {
    f"{model_type}-small": config_of(model_type=model_type, **fields_of(model_type))
    for model_type in model_types()
    if generates(model_type)
}

# One of each architecture, whose matrices fill panels.
PANELS_OF_EACH: dict[str, Config] = {
    f"{model_type}-panels": config_of(**panel_fields(model_type))
    for model_type in model_types()
    if generates(model_type)
}

OTHER_CONFIGS = {name: config_of(**one) for name, one in other_fields().items()} | PANELS_OF_EACH

ALL_CONFIGS = ONE_LAYER | CONFIGS | PANEL_CONFIGS | CUT_CONFIGS | GPU_CONFIGS | SMALL_CONFIGS | OTHER_CONFIGS
