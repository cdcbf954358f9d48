"""Questions to a run: nobody may be there to answer."""

from pathlib import Path

import pytest

from livescale.load.scenario.play import PlayOptions
from livescale.load.scenario.questions import Question, show
from tests.load.scenario.scenarios import SMALL, played, read


def test_a_registry_that_is_dead_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL.replace("who: planner, seconds: 0.3", "who: nobody").replace(
        "{what: freeze, at: 1.2, who: nobody}", "{what: kill, at: 0.1, who: registry}"
    )
    _, (answer,) = played(read(tmp_path, text), options=PlayOptions(until=0.5, questions=[Question(0.3)]))
    show(answer)
    assert "livescale status at 0.3 s:\nnobody answered: no process listens" in capsys.readouterr().out
