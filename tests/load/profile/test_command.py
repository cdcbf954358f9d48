import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.profile.measure import DECODES, PROMPTS
from livescale.services.cli.main import cli
from livescale.shared.messages.parameters import Family
from livescale.shared.model.latency import find_latency
from tests.checkpoints import copy_checkpoint, tiny_checkpoint


def test_a_profile_of_this_machine_is_one_that_a_modelled_engine_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    result = CliRunner().invoke(
        cli, ["profile", str(tiny_checkpoint("llama")), "--output", str(file), "--dtype", "float32"]
    )
    assert result.exit_code == 0, result.output
    assert f"{file}: fitted to {len(PROMPTS) + len(DECODES)} steps" in result.output
    assert "llama in float32" in find_latency(str(file)).source


@pytest.mark.parametrize(
    ("family", "config", "why"),
    [
        ("bert", {}, "makes no tokens"),
        ("llama", {"max_position_embeddings": 512}, "max_position_embeddings is 512"),
    ],
)
def test_a_model_that_cannot_be_measured_is_refused(
    family: Family, config: dict[str, object], why: str, tmp_path: Path
) -> None:
    copy = copy_checkpoint(family, tmp_path)
    file = copy / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    result = CliRunner().invoke(cli, ["profile", str(copy), "--output", str(tmp_path / "mine.yaml")])
    assert result.exit_code == 1
    assert why in result.output
    assert not (tmp_path / "mine.yaml").exists()


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["profile", str(tmp_path), "--output", str(tmp_path / "mine.yaml")])
    assert result.exit_code == 1
    assert "config.json" in result.output
    assert not (tmp_path / "mine.yaml").exists()
