from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.chaos.command import chaos


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--disturb", "worker,nobody"), "--disturb: there is no service 'nobody'; choose from: worker, gateway"),
        (("--trace", "nofile"), "nofile: not a readable trace"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_made(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(chaos, words)
    assert result.exit_code == 2
    assert said in result.output
    assert list(tmp_path.iterdir()) == []
