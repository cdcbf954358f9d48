"""Prompts of conversations are those of transformers, on the same checkpoint."""

import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from livescale.services.gateway.bodies import ChatMessage, TextPart
from livescale.services.gateway.chat_template import ChatTemplate, TemplateRefusal
from livescale.services.gateway.checkpoint_text import BadCheckpoint, load_checkpoint_text
from livescale.shared.messages.parameters import Family
from tests.checkpoints import FAMILIES, copy_checkpoint, tiny_checkpoint, token_id

CHAT = [
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content=[TextPart("text", "語 one"), TextPart("text", "two 🙂")]),
    ChatMessage(role="assistant", content="yes"),
    ChatMessage(role="user", content="<b>more</b>"),
]
PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "語 one\ntwo 🙂"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "<b>more</b>"},
]


def noon() -> float:
    return 1_700_000_000.0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_prompt_and_tokens_are_those_of_transformers(family: Family, add_generation_prompt: bool) -> None:
    text = load_checkpoint_text(tiny_checkpoint(family), noon)
    reference = AutoTokenizer.from_pretrained(tiny_checkpoint(family))
    assert text.template is not None
    prompt = text.template.render(CHAT, add_generation_prompt)
    assert prompt == reference.apply_chat_template(PLAIN, add_generation_prompt=add_generation_prompt, tokenize=False)
    assert text.encode(prompt, add_special_tokens=False) == reference(prompt, add_special_tokens=False)["input_ids"]
    assert text.encode("abc 語", add_special_tokens=True) == reference("abc 語")["input_ids"]


def test_templates_have_what_transformers_gives_them() -> None:
    source = (
        "{{ bos_token }}{% for message in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% generation %}{{ message | tojson }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') }}"
    )
    rendered = ChatTemplate(source, {"bos_token": "<s>"}, noon).render(CHAT)
    assert rendered.startswith('<s>{"role": "system", "content": "Be brief."}{"role": "user", "content": "語 one')
    assert rendered.endswith("}2023")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].missing.more }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set _ = messages.append(1) %}",
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        ChatTemplate(source, {}, noon).render(CHAT)


def test_a_broken_template_is_the_checkpoints_fault() -> None:
    with pytest.raises(TemplateRefusal, match="template is broken"):
        ChatTemplate("{% for %}", {}, noon)


def test_end_of_sequence_ids_come_from_all_files(tmp_path: Path) -> None:
    text = load_checkpoint_text(tiny_checkpoint("llama"), noon)
    ends = [token_id(text.tokenizer, token) for token in ("<|end_of_text|>", "<|eot_id|>")]
    assert text.eos_token_ids == tuple(sorted(ends))
    bare = copy_checkpoint("llama", tmp_path)
    (bare / "generation_config.json").unlink()
    assert load_checkpoint_text(bare, noon).eos_token_ids == (ends[1],)


def test_the_authors_generation_defaults_are_taken_where_they_are_possible(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    (directory / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 7.0, "top_k": 20}')
    defaults = load_checkpoint_text(directory, noon).defaults
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.6, 1.0, 20)


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
