"""The text side of a checkpoint spoiled in every way: refused by the name of the file, soon, and with little memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.checkpoint_reading import BadCheckpoint, load_checkpoint_text
from tests.checkpoints import copy_checkpoint
from tests.fuzz.effort import examples
from tests.fuzz.test_checkpoints import JSON, NESTED, Change, limited_memory, linked, piped, sparse, spoiled
from tests.gateway.conftest import serve_gateway
from tests.gateway.test_chat_template import noon

CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")
FILES = (*CONFIGS, "tokenizer.json", "chat_template.jinja")


def replaced_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


HOSTILE: dict[str, Change] = {
    "a pipe": piped,
    "a device without end": lambda path: linked(path, "/dev/zero"),
    "a terminal": lambda path: linked(path, "/dev/ptmx"),
    "a directory": replaced_by_directory,
    "a link to itself": lambda path: linked(path, path.name),
    "a gigabyte": lambda path: sparse(path, 1 << 30),
    "what is not text": lambda path: path.write_bytes(b"\xff\xfe" * 100),
}
JSON_ONLY: dict[str, Change] = {
    "nested without end": lambda path: path.write_bytes(NESTED),
    "nested without end in an unknown field": lambda path: path.write_bytes(b'{"vocab_size":9,"x":' + NESTED),
    "a list": lambda path: path.write_bytes(b"[]"),
    "nothing": lambda path: path.write_bytes(b""),
}
WRONG_FIELDS = [
    ("config.json", "vocab_size", 0),
    ("config.json", "vocab_size", 10**30),
    ("config.json", "eos_token_id", -1),
    ("config.json", "eos_token_id", [0] * 5_000),
    ("generation_config.json", "eos_token_id", 2**40),
    ("generation_config.json", "temperature", "hot"),
    ("generation_config.json", "top_k", 0.5),
    ("tokenizer_config.json", "bos_token", 7),
    ("tokenizer_config.json", "chat_template", {"default": "x"}),
]


def at_hand(directory: Path) -> Path:
    """Every file is there, the template in one of its own."""
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return directory


@pytest.mark.parametrize("file", FILES)
def test_hostile_files_are_refused_by_name_without_waiting(tmp_path: Path, file: str) -> None:
    changes = HOSTILE if file == "chat_template.jinja" else HOSTILE | JSON_ONLY
    for what, change in changes.items():
        directory = at_hand(copy_checkpoint("qwen2", tmp_path / what))
        change(directory / file)
        with limited_memory(), pytest.raises(BadCheckpoint) as refused:
            load_checkpoint_text(directory, noon)
        assert str(directory / file) in str(refused.value), what
        assert len(str(refused.value)) < 2_000, what


@pytest.mark.parametrize(("file", "field", "value"), WRONG_FIELDS)
def test_a_field_of_the_wrong_kind_is_refused_by_its_name(tmp_path: Path, file: str, field: str, value: Any) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    path = directory / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(BadCheckpoint, match=field) as refused:
        load_checkpoint_text(directory, noon)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, number: str) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    (directory / "generation_config.json").write_text(f'{{"temperature": {number}}}')
    with pytest.raises(BadCheckpoint, match="generation_config"):
        load_checkpoint_text(directory, noon)


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{", "{% include 'x' %}{% endfor %}", "x" * 10**6, "{{ " + "(" * 5_000, "{% if x %}" * 500]
)
def test_a_template_that_is_none_is_refused_with_its_file_and_field(tmp_path: Path, source: str) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    (directory / "chat_template.jinja").write_text(source)
    with pytest.raises(BadCheckpoint, match=r"chat_template\.jinja: the chat template"):
        load_checkpoint_text(directory, noon)
    (directory / "chat_template.jinja").unlink()
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    with pytest.raises(BadCheckpoint, match=r"tokenizer_config\.json: chat_template: the chat template"):
        load_checkpoint_text(directory, noon)


def test_links_are_followed_as_the_hubs_cache_needs_it(tmp_path: Path) -> None:
    directory = at_hand(copy_checkpoint("qwen2", tmp_path))
    for file in FILES:
        (directory / file).rename(tmp_path / f"blob-{file}")
        (directory / file).symlink_to(f"../blob-{file}")
    assert load_checkpoint_text(directory, noon).template is not None


@examples(30)
@given(st.data())
def test_any_configuration_is_refused_by_file_or_of_use(data: st.DataObject) -> None:
    with spoiled("llama") as directory:
        file = data.draw(st.sampled_from([*CONFIGS, "tokenizer.json"]))
        path = directory / file
        content = json.loads(path.read_text())
        field = data.draw(st.sampled_from([*sorted(content), "eos_token_id", "temperature", "chat_template"]))
        content[field] = data.draw(JSON | st.integers(-5, 2**40))
        path.write_text(json.dumps(content), encoding="utf-8", errors="surrogatepass")
        assert_refused_or_of_use(directory, path)


@examples(30)
@given(place=st.integers(0, 1 << 20), data=st.binary(min_size=1, max_size=9))
def test_a_tokenizer_with_other_bytes_is_refused_or_of_use(place: int, data: bytes) -> None:
    with spoiled("qwen2") as directory:
        path = directory / "tokenizer.json"
        with path.open("r+b") as stream:
            stream.seek(place % path.stat().st_size)
            stream.write(data)
        assert_refused_or_of_use(directory, path)


def assert_refused_or_of_use(directory: Path, spoiled: Path) -> None:
    try:
        text = load_checkpoint_text(directory, noon)
    except BadCheckpoint as error:
        refusal = str(error)
        assert str(spoiled) in refusal
    else:
        text.decode(text.encode("some text 語", add_special_tokens=True))


async def test_a_model_whose_text_cannot_be_read_disturbs_no_other(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    ask = {"prompt": "a", "max_tokens": 1}
    async with serve_gateway(directory) as served:
        piped(directory / "tokenizer.json")
        for _ in range(2):
            status, body = await served.post("/v1/completions", {"model": "tiny", **ask})
            assert (status, "tokenizer.json: not a regular file" in body["error"]["message"]) == (500, True)
        (directory / "tokenizer.json").unlink()
        (copy_checkpoint("qwen2", tmp_path / "whole") / "tokenizer.json").rename(directory / "tokenizer.json")
        assert (await served.post("/v1/completions", {"model": "tiny", **ask}))[0] == 200
