"""What `livescale up` prints on stderr."""

import json

import pytest

from livescale.services.cli.printer import JsonPrinter, UpPrinter, make_printer

OWN = '{"event": "joined", "service": "router", "id": "router-0", "level": "info"}'


def say_all(printer: UpPrinter) -> None:
    printer.line("router-0", OWN)
    printer.line("worker-1", "Traceback (most recent call last):")
    printer.line("worker-1", "{not json")
    printer.line("worker-1", "")
    printer.progress("waiting for router-0")
    printer.ended("router-0", "killed by SIGKILL after 9 s; starting it again")
    if isinstance(printer, JsonPrinter):
        printer.failed("not ready within 3 s")


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    say_all(make_printer("json"))
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert events[0] == json.loads(OWN)
    assert [(each["event"], each["id"], each["level"]) for each in events[1:]] == [
        ("output", "worker-1", "info"),
        ("output", "worker-1", "info"),
        ("progress", "up", "info"),
        ("process_ended", "router-0", "warning"),
        ("up_failed", "up", "error"),
    ]
    assert events[4]["reason"] == "killed by SIGKILL after 9 s; starting it again"
    assert all(each["timestamp"].endswith("Z") for each in events[1:])


def test_lines_for_people_say_whose_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    say_all(make_printer("text"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "worker-1   | Traceback (most recent call last):"
    assert "router-0   | (supervisor) killed by SIGKILL after 9 s; starting it again" in lines
