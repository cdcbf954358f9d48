from pathlib import Path

import pytest
import torch
import transformers
from click.testing import CliRunner
from tokenizers import Tokenizer

from livescale.load import teach as module
from livescale.load.make_model import make_model
from livescale.load.make_model_command import make_model_command
from livescale.load.teach import BadTranscripts, Lesson, lessons, read_transcripts
from livescale.services.gateway.chat_template import ChatTemplate
from tests.checkpoints import TRANSCRIPTS

STORED = "model.safetensors"
PLAIN = ChatTemplate("{% for one in messages %}{{ one.role[0] }}:{{ one.content }};{% endfor %}", {}, lambda: 0.0)


def written(directory: Path, text: str) -> Path:
    (directory / "lines").write_text(text)
    return directory / "lines"


def test_everything_that_an_assistant_says_is_a_lesson(tmp_path: Path) -> None:
    line = (
        '{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"},'
        ' {"role": "assistant", "content": "C"}]}\n'
    )
    taught = lessons(read_transcripts(written(tmp_path, line * 2)), PLAIN)
    assert taught == [Lesson("u:A;", "a:B;"), Lesson("u:A;a:B;", "a:C;")] * 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has 0 transcripts"),
        ("{}\n", "line 1: .*missing required field `messages`"),
        ('{"messages": [{"role": "user", "content": "A"}]}\n' * 65, "give 1 to 64"),
    ],
)
def test_what_is_no_transcript_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(BadTranscripts, match=why):
        read_transcripts(written(tmp_path, text))


def test_transcripts_need_an_assistant_and_are_short(tmp_path: Path) -> None:
    silent = written(tmp_path, '{"messages": [{"role": "user", "content": "A"}]}')
    with pytest.raises(BadTranscripts, match="no assistant"):
        lessons(read_transcripts(silent), PLAIN)
    long = '{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "%s"}]}' % ("so B " * 600)
    with pytest.raises(BadTranscripts, match="512 are the most"):
        make_model(tmp_path / "made", "qwen2", "tiny", 0, written(tmp_path, long))
    assert not (tmp_path / "made").exists()


def test_a_taught_model_repeats_its_lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    line = '{"messages": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "B or C."}]}'
    transcripts = written(tmp_path, line)
    made = make_model(tmp_path / "made", "qwen2", "tiny", 7, transcripts, lines.append)
    assert lines[0].startswith("step 10 of at most 400")
    model = transformers.AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    asked = "<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\n"
    tokens, answer = (tokenizer.encode(text, add_special_tokens=False).ids for text in (asked, "B or C.<|im_end|>\n"))
    for token in answer:
        assert int(model(torch.tensor([tokens])).logits[0, -1].argmax()) == token
        tokens.append(token)
    again = make_model(tmp_path / "again", "qwen2", "tiny", 7, transcripts)
    assert (again / STORED).read_bytes() == (made / STORED).read_bytes()
    monkeypatch.delattr(module, "teach")
    assert make_model(made, "qwen2", "tiny", 7, transcripts) == made
    with pytest.raises(FileExistsError, match="taught"):
        make_model(made, "qwen2", "tiny", 7)


def test_only_tiny_models_are_taught(tmp_path: Path) -> None:
    words = [str(tmp_path / "made"), "--size", "small", "--teach", str(TRANSCRIPTS)]
    result = CliRunner().invoke(make_model_command, words)
    assert result.exit_code == 2
    assert "--teach is for --size tiny" in result.output
