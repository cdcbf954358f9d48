"""What a checkpoint's files say to the gateway, and which of them are refused."""

import shutil
from pathlib import Path

import pytest

from livescale.services.gateway.checkpoint_reading import BadCheckpoint, load_checkpoint_text
from tests.checkpoints import copy_checkpoint, tiny_checkpoint, token_id
from tests.gateway.test_chat_template import CHAT, noon


def test_end_of_sequence_ids_come_from_all_files(tmp_path: Path) -> None:
    text = load_checkpoint_text(tiny_checkpoint("llama"), noon)
    ends = [token_id(text.tokenizer, token) for token in ("<|end_of_text|>", "<|eot_id|>")]
    assert text.eos_token_ids == tuple(sorted(ends))
    bare = copy_checkpoint("llama", tmp_path)
    (bare / "generation_config.json").unlink()
    assert load_checkpoint_text(bare, noon).eos_token_ids == (ends[1],)


def test_the_authors_generation_defaults_are_taken_where_they_are_possible(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    (directory / "generation_config.json").write_text(
        '{"temperature": 0.6, "top_p": 7.0, "top_k": 20, "repetition_penalty": 1.05}'
    )
    defaults = load_checkpoint_text(directory, noon).defaults
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.6, 1.0, 20)
    assert (defaults.min_p, defaults.repetition_penalty) == (0.0, 1.05)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", None),
        ("config.json", "{"),
        ("config.json", '{"vocab_size": "many"}'),
        ("tokenizer.json", None),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", '{"chat_template": 5}'),
        ("chat_template.jinja", "{% for %}"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused_by_file(tmp_path: Path, file: str, content: str | None) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    if content is None:
        (directory / file).unlink()
    else:
        (directory / file).write_text(content)
    with pytest.raises(BadCheckpoint, match=str(directory)):
        load_checkpoint_text(directory, noon)


def test_a_template_may_be_one_of_several_or_missing(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    (directory / "chat_template.jinja").unlink()
    assert load_checkpoint_text(directory, noon).template is None
    named = '{"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]}'
    (directory / "tokenizer_config.json").write_text(named)
    template = load_checkpoint_text(directory, noon).template
    assert template is not None
    assert template.render(CHAT) == "y"
    shutil.rmtree(directory)
