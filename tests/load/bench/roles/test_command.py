from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench import samples
from livescale.load.bench.roles import command as bench
from livescale.load.bench.roles import measure, rows
from livescale.load.incidents import RunIncident
from livescale.load.kept import kept_model
from tests.load.bench.bench_output import records_of


class Unwatched:
    """Sees no stalls."""

    found: Sequence[RunIncident] = ()

    def __enter__(self) -> "Unwatched":
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.system
@pytest.mark.slow
def test_it_measures_with_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "SIZE", "small")
    monkeypatch.setattr(measure, "SWITCHES", 2)
    # On a busy machine a core stands still in every try of a sample, and the bench ends without a result.
    monkeypatch.setattr(samples, "StallWatch", Unwatched)
    for name, number in (("GAPS", 500), ("LONE", 2), ("BACK_TO_BACK", 6)):
        monkeypatch.setattr(rows, name, number)
    assert kept_model("small", print).exists()
    result = CliRunner().invoke(bench.roles, ["--repeats", "1"])
    # Whether a stream is under way as roles change depends on the machine.
    has_ended = "on an idle machine" not in result.output
    lines = {line["case"]: line for line in records_of(result, has_ended=has_ended)}
    assert lines["TBT p99, apart / colocated"]["value"] > 0, result.output
    if has_ended:
        # So does which bars are kept; that no parameters move does not.
        assert lines["parameters moved as roles change"]["ok"] is True, result.output
        for case in ("KV exposed, to its limit", "order to first reservation, p95"):
            assert lines[case]["value"] > 0, result.output
        assert "<svg" in (tmp_path / "livescale-roles.html").read_text()
