import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from huggingface_hub import constants

from livescale.shared.messages.layers import RopeScaling
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.checkpoint import CheckpointError, load_model_config, resolve_model_path
from tests.checkpoints import FAMILIES, tiny_checkpoint

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1_000,
    "hidden_size": 160,
    "intermediate_size": 400,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "max_position_embeddings": 2_048,
    "eos_token_id": 2,
}
QWEN2 = LLAMA | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 5}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}


def write(directory: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def parse(directory: Path, **fields: Any) -> ModelConfig:
    return load_model_config(write(directory, LLAMA | fields))


def assert_as_transformers(directory: Path) -> None:
    ours, theirs = load_model_config(directory), transformers.AutoConfig.from_pretrained(directory)
    assert ours.family == theirs.model_type
    rope = theirs.rope_parameters
    for field in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "max_position_embeddings",
        "tie_word_embeddings",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.rope_theta == rope["rope_theta"]
    if rope["rope_type"] == "default":
        assert ours.rope_scaling is None
    else:
        assert ours.rope_scaling == RopeScaling(**{name: rope[name] for name in RopeScaling.__struct_fields__})


@pytest.mark.parametrize("family", FAMILIES)
def test_made_models_are_read_as_transformers_reads_them(family: Any) -> None:
    assert_as_transformers(tiny_checkpoint(family))
    assert load_model_config(tiny_checkpoint(family)).attention_bias == (family == "qwen2")


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        LLAMA | {"num_key_value_heads": 1, "head_dim": 24, "tie_word_embeddings": True},
        LLAMA | {"rope_theta": 500_000.0, "rope_scaling": LLAMA3 | {"rope_type": "llama3"}},
        LLAMA | {"rope_theta": 500_000.0, "rope_scaling": LLAMA3 | {"type": "llama3"}},
        LLAMA | {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 500_000.0}},
        LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5_000}},
        LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1, "high_freq_factor": 2}},
        QWEN2 | {"rope_theta": 1e6, "sliding_window": 128, "use_sliding_window": False, "max_window_layers": 1},
        QWEN2 | {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 2},
        QWEN2 | {"rope_scaling": None, "tie_word_embeddings": True},
    ],
)
def test_configurations_of_every_style_are_read_as_transformers_reads_them(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    assert_as_transformers(write(tmp_path, config))


@pytest.mark.parametrize(
    "config",
    [
        # What the files of SmolLM2, of the first Llama and of SmolLM3 have besides.
        LLAMA | {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}},
        LLAMA | {"max_sequence_length": 2_048},
        LLAMA
        | {"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "num_key_value_heads": 5}
        | {"max_window_layers": 28, "no_rope_layers": [1, 0], "sliding_window": None, "use_sliding_window": False},
    ],
)
def test_keys_that_change_nothing_are_no_reason_to_refuse(tmp_path: Path, config: dict[str, Any]) -> None:
    assert_as_transformers(write(tmp_path, config))


def test_end_tokens_come_from_both_files(tmp_path: Path) -> None:
    write(tmp_path, LLAMA, {"eos_token_id": [9, 7], "bos_token_id": 1})
    config = load_model_config(tmp_path)
    assert config.eos_token_ids == [2, 7, 9]
    assert config.bos_token_id == 1


def test_a_checkpoint_without_end_tokens_has_none(tmp_path: Path) -> None:
    assert parse(tmp_path, eos_token_id=None).eos_token_ids == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "mpt"}, "model_type 'mpt'"),
        ({"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClassification"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantization_config"),
        ({"compression_config": {"bits": 4}}, "compression_config"),
        ({"sliding_window": 512}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"some_new_key": 1}, "'some_new_key' is not known .*; remove it from config.json"),
        ({"model_type": "qwen2_vl"}, "tokens only; use a checkpoint of the text model"),
        (
            {"model_type": "mpt", "auto_map": {"AutoConfig": "mine.MyConfig"}},
            r"own code \(auto_map\) is never run",
        ),
        ({"model_type": "mamba2"}, "no KV cache; use a model"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "use the checkpoint in bfloat16"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope_type 'dynamic'"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ by layer"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"rope_type": "llama3", "factor": "8"}}, "factor"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"head_dim": 31}, "head_dim"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_size": "160"}, "hidden_size"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        parse(tmp_path, **fields)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_window_that_qwen2_uses_is_that_of_its_upper_layers(tmp_path: Path) -> None:
    write(tmp_path, QWEN2 | {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 1})
    config = load_model_config(tmp_path)
    assert [config.kind(layer).window for layer in range(2)] == [0, 128]


def test_windows_and_rotations_are_read_from_the_keys_of_the_hub(tmp_path: Path) -> None:
    """As Gemma 3 has them there, and as transformers 5 writes them."""
    gemma = LLAMA | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 3}
    hub = {"rope_theta": 1e6, "rope_local_base_freq": 5e3, "sliding_window_pattern": 3, "sliding_window": 64}
    full, near = {"rope_type": "default", "rope_theta": 1e6}, {"rope_type": "default", "rope_theta": 5e3}
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    written = {"rope_parameters": {"full_attention": full, "sliding_attention": near}, "layer_types": types}
    of_the_hub = load_model_config(write(tmp_path, gemma | hub))
    assert of_the_hub == load_model_config(write(tmp_path, gemma | written | {"sliding_window": 64}))
    assert [of_the_hub.kind(layer).window for layer in range(3)] == [64, 64, 0]
    assert of_the_hub.rope_theta == 1e6
    assert of_the_hub.kind(0).frequencies is not None


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    write(tmp_path, {key: value for key, value in LLAMA.items() if key != "hidden_size"})
    with pytest.raises(CheckpointError, match="hidden_size"):
        load_model_config(tmp_path)


def test_a_directory_without_configuration_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read .* Hugging Face format"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_malformed_json_is_refused_with_its_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, LLAMA)
    (tmp_path / name).write_text('{"eos_token_id": ')
    with pytest.raises(CheckpointError, match=name):
        load_model_config(tmp_path)


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model_path(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["/no/such/place", "no/such/place", "", "nowhere", "../no/such"])
def test_what_is_neither_directory_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        resolve_model_path(name)


def test_what_cannot_be_looked_at_is_refused_with_the_reason() -> None:
    with pytest.raises(CheckpointError, match=r"x: cannot be looked at \(File name too long\)"):
        resolve_model_path("/" + "x" * 300)


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(CheckpointError, match="no such directory"):
        resolve_model_path(str(file))


def test_a_hub_id_is_refused_clearly_where_the_hub_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"org/name: .*hub .*HF_HUB_OFFLINE"):
        resolve_model_path("org/name")


def test_gguf_files_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model-Q4_K_M.gguf"
    file.touch()
    with pytest.raises(CheckpointError, match="GGUF files are not served; give the checkpoint"):
        load_model_config(tmp_path)
    with pytest.raises(CheckpointError, match="GGUF files are not served; give the checkpoint"):
        resolve_model_path(str(file))
