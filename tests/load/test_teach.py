from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load import teach as module
from livescale.load.make_model import make_model
from livescale.load.make_model_command import make_model_command
from livescale.load.teach import BadTranscripts, Lesson, lessons, read_transcripts
from livescale.services.gateway.chat_template import ChatTemplate
from tests.checkpoints import TRANSCRIPTS, taught_checkpoint

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


def test_a_taught_model_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = taught_checkpoint()
    monkeypatch.delattr(module, "teach")
    assert make_model(made, "qwen2", "tiny", 7, TRANSCRIPTS) == made
    with pytest.raises(FileExistsError, match="taught"):
        make_model(made, "qwen2", "tiny", 7)


def test_only_tiny_models_are_taught(tmp_path: Path) -> None:
    words = [str(tmp_path / "made"), "--size", "small", "--teach", str(TRANSCRIPTS)]
    result = CliRunner().invoke(make_model_command, words)
    assert result.exit_code == 2
    assert "--teach is for --size tiny" in result.output


@pytest.mark.slow
def test_the_same_transcripts_make_the_same_parameters(tmp_path: Path) -> None:
    lines: list[str] = []
    again = make_model(tmp_path / "again", "qwen2", "tiny", 7, TRANSCRIPTS, lines.append)
    stored = "model.safetensors"
    assert (again / stored).read_bytes() == (taught_checkpoint() / stored).read_bytes()
    assert lines[0].startswith("step 10 of at most 400")
