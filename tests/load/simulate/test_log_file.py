"""Files of logs: what they tell of events, and where two of them part."""

from pathlib import Path

import msgspec
import pytest

from livescale.load.simulate.event_log import LoggedEvent
from livescale.load.simulate.log_file import Difference, LogFile, find_difference
from livescale.shared.bus.codec import encode
from livescale.shared.messages.requests import Cancel


def written(path: Path, *ids: str) -> Path:
    with path.open("wb") as file:
        log = LogFile(file)
        for number, id in enumerate(ids):
            log.write(LoggedEvent(number / 8, f"req.{id}", encode(Cancel(request_id=id), json=bool(number % 2))))
    return path


def test_a_line_tells_the_message_in_whatever_form_it_was_sent(tmp_path: Path) -> None:
    lines = [msgspec.json.decode(line) for line in written(tmp_path / "log", "a", "b").read_bytes().splitlines()]
    assert [(line["at"], line["subject"]) for line in lines] == [(0.0, "req.a"), (0.125, "req.b")]
    assert [line["message"]["request_id"] for line in lines] == ["a", "b"]


@pytest.mark.parametrize(("ids", "number"), [("abc", None), ("abd", 3), ("xbc", 1), ("ab", 3), ("abcd", 4)])
def test_the_first_event_that_differs_is_found(tmp_path: Path, ids: str, number: int | None) -> None:
    found = find_difference(written(tmp_path / "one", *"abc"), written(tmp_path / "other", *ids))
    assert (found and found.number) == number
    if ids == "ab":
        assert isinstance(found, Difference)
        assert found.one is not None
        assert found.other is None
