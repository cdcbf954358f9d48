import hashlib
import json
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from click.testing import CliRunner

from livescale.load import make_model as module
from livescale.load.make_model import make_model
from livescale.load.make_model_command import make_model_command
from livescale.load.model_shapes import SHAPES
from livescale.load.sizes import Size
from livescale.shared.messages.parameters import Family, ModelConfig
from livescale.shared.model.architectures import find_architecture, model_types
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import FAMILIES, tiny_checkpoint


def digest(directory: Path) -> dict[str, str]:
    """A digest of the checkpoint without the packed forms that hosts keep beside it."""
    files = [file for file in directory.iterdir() if not file.name.startswith("livescale-")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
def test_the_same_seed_makes_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    made = str(tmp_path / "again")
    code = f"import pathlib, livescale.load.make_model as m; m.make_model(pathlib.Path({made!r}), 'llama', 'tiny', 7)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert digest(tmp_path / "again") == digest(tiny_checkpoint("llama"))


def test_another_seed_makes_other_parameters_and_another_tokenizer(tmp_path: Path) -> None:
    ours, theirs = digest(make_model(tmp_path / "other", "qwen2", "tiny", 8)), digest(tiny_checkpoint("qwen2"))
    assert {name for name in ours if ours[name] != theirs[name]} >= {"model.safetensors", "tokenizer.json"}


def parameters(family: Family, size: Size) -> tuple[ModelConfig, float]:
    """The configuration of a made model, and how many parameters it has."""
    tiny = load_model_config(tiny_checkpoint(family))
    config = msgspec.structs.replace(tiny, **asdict(SHAPES[family, size]))
    return config, sum(layout.size_bytes for layout in block_layouts(config, "bfloat16")) / 2


SIZES: list[tuple[Size, float]] = [
    ("tiny", 1e6),
    ("small", 30e6),
    ("medium", 120e6),
    ("large", 500e6),
    ("light-kv", 50e6),
]


@pytest.mark.parametrize(("size", "about"), SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_what_they_are_called(family: Family, size: Size, about: float) -> None:
    assert 0.85 * about < parameters(family, size)[1] < 1.15 * about


@pytest.mark.parametrize("family", FAMILIES)
def test_light_kv_weighs_against_the_parameters_as_that_of_an_8b_model(family: Family) -> None:
    config, count = parameters(family, "light-kv")
    of_a_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    llama3_8b = 8.03e9 / (2 * 32 * 8 * 128)
    assert count / of_a_token == pytest.approx(llama3_8b, rel=0.03)


def test_the_families_differ_where_readers_go_wrong() -> None:
    llama, qwen2 = (load_model_config(tiny_checkpoint(family)) for family in FAMILIES)
    assert llama.rope_scaling is not None
    assert qwen2.rope_scaling is None
    assert llama.head_dim != llama.hidden_size // llama.num_attention_heads
    assert qwen2.attention_bias
    assert not llama.attention_bias
    assert qwen2.tie_word_embeddings
    assert not llama.tie_word_embeddings
    assert (tiny_checkpoint("llama") / "model.safetensors.index.json").exists()
    assert (tiny_checkpoint("qwen2") / "model.safetensors").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_varies_and_depends_on_the_prompt(family: Family) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint(family), dtype=torch.float32)
    prompts = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 8, 10]])
    streams = model.generate(prompts, max_new_tokens=48, min_new_tokens=48, attention_mask=torch.ones_like(prompts))
    one, other = (set(stream[5:].tolist()) for stream in streams)
    assert len(one) > 32
    assert len(other) > 32
    assert streams[0, 5:].tolist() != streams[1, 5:].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_or_the_text_may_end_a_stream(family: Family) -> None:
    generation = json.loads((tiny_checkpoint(family) / "generation_config.json").read_text())
    assert len(generation["eos_token_id"]) == 2
    assert load_model_config(tiny_checkpoint(family)).eos_token_ids == sorted(generation["eos_token_id"])


def test_a_directory_that_already_is_the_model_is_kept() -> None:
    before = (tiny_checkpoint("llama") / "config.json").stat().st_mtime_ns
    assert make_model(tiny_checkpoint("llama"), "llama", "tiny", 7) == tiny_checkpoint("llama")
    assert (tiny_checkpoint("llama") / "config.json").stat().st_mtime_ns == before


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    directory = tmp_path / "empty"
    directory.mkdir()
    make_model(directory, "qwen2", "tiny", 7)
    assert digest(directory) == digest(tiny_checkpoint("qwen2"))
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_two_who_make_the_same_model_at_once_both_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny_checkpoint("qwen2")

    def write_while_another_finishes(directory: Path, *_: object) -> None:
        shutil.copytree(whole, directory, dirs_exist_ok=True)
        shutil.copytree(whole, tmp_path / "made")

    monkeypatch.setattr(module, "_write", write_while_another_finishes)
    assert make_model(tmp_path / "made", "qwen2", "tiny", 7) == tmp_path / "made"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_directory_with_anything_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"not empty .* give another directory"):
        make_model(tmp_path, "llama", "tiny", 7)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_made_model_is_left_alone() -> None:
    with pytest.raises(FileExistsError, match=r"seed=7.*seed=8"):
        make_model(tiny_checkpoint("llama"), "llama", "tiny", 8)


@pytest.mark.parametrize("room", [10_000, 500_000], ids=["tokenizer", "parameters"])
def test_a_disk_that_takes_no_more_is_told_in_a_line_that_names_the_directory(room: int, tmp_path: Path) -> None:
    """No file may grow beyond a few pages, which is how a quota shows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        result = CliRunner().invoke(make_model_command, [str(tmp_path / "m"), "--family", "qwen2", "--size", "tiny"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 1
    [line] = result.output.splitlines()
    assert line.startswith(f"Error: {tmp_path / 'm'} cannot be written: ")
    assert list(tmp_path.iterdir()) == []


OTHERS_OF_TRANSFORMERS = ("exaone4", "glm4")  # whose defaults do not fit a small vocabulary, or each other


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, marks=[] if one in OTHERS_OF_TRANSFORMERS else pytest.mark.slow)
        for one in model_types()
        if (found := find_architecture(one)) and found.generates
    ],
)
def test_transformers_loads_what_is_made(family: Family, tmp_path: Path) -> None:
    made = make_model(tmp_path / family, family, "tiny", 0)
    auto: Any = transformers.AutoModelForCausalLM
    _, loading = auto.from_pretrained(made, output_loading_info=True)
    assert not any(loading.values()), loading
