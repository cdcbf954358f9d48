"""Records of two runs, side by side."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from livescale.load.bench.compare import Comparison, RecordsError, compare, compare_records, parse_records, read_records
from livescale.load.bench.record import RecordPrinter, measured


def line(case: str = "c", value: float = 1.0, unit: str = "s", **more: object) -> str:
    return json.dumps({"bench": "b", "case": case, "value": value, "unit": unit, **more})


def machine(cpu: str) -> str:
    return json.dumps({"bench": "b", "case": "machine", "cpu": cpu, "cores": 2, "flags": [], "stolen": None})


def run(tmp_path: Path, before: list[str], after: list[str]) -> Result:
    files = [tmp_path / "before.jsonl", tmp_path / "after.jsonl"]
    for file, lines in zip(files, (before, after), strict=True):
        file.write_text("\n".join(lines))
    return CliRunner().invoke(compare, list(map(str, files)))


def test_what_a_bench_prints_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printer = RecordPrinter("b")
    printer.emit(measured("b", "c", 1.25, "s", 2.5, at_most=1.0))
    printer.finish()
    (tmp_path / "run.jsonl").write_text(capsys.readouterr().out)
    found = read_records(tmp_path / "run.jsonl")
    assert found.records == {("b", "c", "s"): measured("b", "c", 1.25, "s", 2.5, at_most=1.0)}
    [seen] = found.machines
    assert seen.cores > 0


def test_cases_of_either_file_are_shown() -> None:
    before = parse_records([line("both", 2.0), line("gone"), line("zero", 0.0)], "before")
    after = parse_records([line("both", 3.0), line("new"), line("zero", 1.0)], "after")
    assert list(compare_records(before, after)) == [
        Comparison("b", "both", "s", 2.0, 3.0, 1.5),
        Comparison("b", "gone", "s", 1.0, None, None),
        Comparison("b", "zero", "s", 0.0, 1.0, None),
        Comparison("b", "new", "s", None, 1.0, None),
    ]


def test_figures_of_other_units_have_no_ratio() -> None:
    found = compare_records(parse_records([line(unit="s")], "before"), parse_records([line(unit="ms")], "after"))
    assert [each.ratio for each in found] == [None, None]


def test_unknown_fields_and_empty_lines_are_passed_over_and_the_later_line_counts() -> None:
    found = parse_records([line(value=1.0), "", line(value=4.0, later="field")], "f")
    assert [record.value for record in found.records.values()] == [4.0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line(), "ready"], "f, line 2: not a record of a bench"),
        ([json.dumps({"bench": "b", "case": "c", "unit": "s"})], "f, line 1: .*`value`"),
        ([machine("x")], "f: no record of a bench"),
        ([], "f: no record of a bench"),
    ],
)
def test_a_file_that_is_no_record_is_refused(lines: list[str], said: str) -> None:
    with pytest.raises(RecordsError, match=said):
        parse_records(lines, "f")


def test_the_command_prints_lines_and_a_table(tmp_path: Path) -> None:
    result = run(tmp_path, [line(value=2.0), machine("x")], [line(value=3.0), machine("x")])
    assert result.exit_code == 0
    expected = {"bench": "b", "case": "c", "unit": "s", "before": 2.0, "after": 3.0, "ratio": 1.5}
    assert json.loads(result.stdout) == expected
    assert "1.5" in result.stderr
    assert "Warning" not in result.stderr


def test_other_machines_are_told(tmp_path: Path) -> None:
    result = run(tmp_path, [line(), machine("one")], [line(), machine("another")])
    assert result.exit_code == 0
    assert "Warning: measured on one, 2 cores, then on another, 2 cores" in " ".join(result.stderr.split())


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"\xff\xfe")
    result = CliRunner().invoke(compare, [str(tmp_path / "noise"), str(tmp_path / "noise")])
    assert result.exit_code == 1
    assert "noise: not a readable file of records" in result.stderr
