"""The form every bench prints."""

import json

import pytest

from livescale.load.bench.record import RecordPrinter, measured

KEYS = ["bench", "case", "value", "unit", "against", "ratio", "bar", "ok"]


@pytest.mark.parametrize(
    ("value", "against", "at_least", "at_most", "ok"),
    [
        (5.0, 10.0, 0.5, None, True),
        (4.9, 10.0, 0.5, None, False),
        (10.5, 10.0, None, 1.05, True),
        (10.6, 10.0, None, 1.05, False),
        (10.6, 10.0, None, None, None),
        (10.6, None, None, None, None),
    ],
)
def test_a_bar_is_kept_or_not(
    value: float, against: float | None, at_least: float | None, at_most: float | None, ok: bool | None
) -> None:
    assert measured("b", "c", value, "s", against, at_least=at_least, at_most=at_most).ok is ok


def test_a_record_is_one_json_line_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    printer = RecordPrinter("b")
    printer.progress("working")
    printer.emit(measured("b", "c", 1.23456, "s", 4.0, at_most=1.0))
    printer.emit(measured("b", "d", 7.0, "GB/s"))
    assert printer.finish()
    captured = capsys.readouterr()
    first, second, machine = map(json.loads, captured.out.splitlines())
    assert list(first) == list(second) == KEYS
    assert first == {
        "bench": "b", "case": "c", "value": 1.235, "unit": "s", "against": 4.0, "ratio": 0.3086, "bar": 1.0, "ok": True
    }  # fmt: skip
    assert second["ok"] is None
    assert "working" in captured.err
    assert machine["case"] == "machine"
    assert machine["cpu"]
    assert "Machine: " in captured.err


def test_a_missed_bar_is_reported_at_the_end() -> None:
    printer = RecordPrinter("b")
    printer.emit(measured("b", "c", 2.0, "s", 1.0, at_most=1.0))
    printer.emit(measured("b", "d", 1.0, "s", 1.0, at_most=1.0))
    assert not printer.finish()
