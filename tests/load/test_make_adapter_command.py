"""The command makes an adapter of a checkpoint, or says why not."""

from pathlib import Path

from click.testing import CliRunner

from livescale.load.make_adapter_command import make_adapter_command
from livescale.shared.model.declaration.adapter import ADAPTER_CONFIG, ADAPTER_FILE
from tests.checkpoints import pooling_checkpoint, tiny_checkpoint


def test_an_adapter_is_made(tmp_path: Path) -> None:
    words = [str(tmp_path / "a"), "--model", str(tiny_checkpoint("llama")), "--rank", "2", "--matrix", "q_proj"]
    result = CliRunner().invoke(make_adapter_command, words)
    assert result.exit_code == 0, result.output
    assert {file.name for file in (tmp_path / "a").iterdir()} == {ADAPTER_CONFIG, ADAPTER_FILE}


def test_a_model_that_takes_none_is_refused(tmp_path: Path) -> None:
    words = [str(tmp_path / "a"), "--model", str(pooling_checkpoint("qwen2", tmp_path))]
    result = CliRunner().invoke(make_adapter_command, words)
    assert result.exit_code == 1
    assert "make vectors" in result.output
