from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench.live import command as bench
from livescale.load.kept import kept_model
from tests.load.bench.bench_output import records_of


@pytest.mark.system
@pytest.mark.slow
def test_it_measures_with_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("SIZE", "small"), ("FACTORS", (6.0,)), ("STREAM_TOKENS", 2)):
        monkeypatch.setattr(bench, name, value)
    assert kept_model("small", print).exists()
    result = CliRunner().invoke(bench.live, ["--repeats", "1"])
    # Whether layers are run before the last one is there depends on the machine.
    has_ended = "on an idle machine" not in result.output
    lines = {line["case"]: line for line in records_of(result, has_ended=has_ended)}
    assert lines["load, zigzag"]["value"] > 0, result.output
    if has_ended:
        assert lines["a block takes 6 layers, zigzag: mean TTFT"]["value"] > 0, result.output
        assert "<svg" in (tmp_path / "livescale-live.html").read_text()
