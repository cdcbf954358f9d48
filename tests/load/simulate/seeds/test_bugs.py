"""The bugs that measure the random systems: whether they can still be planted, and how many are found."""

import ast
import subprocess
import sys

import pytest

from tests.load.simulate.seeds.bugs import BUGS, Bug
from tests.load.simulate.seeds.plant import planted

SEEDS = 100  # from the one on that found it; which one does changes with everything that takes time


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    ast.parse(planted(bug))  # its text is there once, and the new one is a program


def test_many_bugs_were_real() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
    assert sum(bool(bug.commit) for bug in BUGS) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.found_by is not None], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    command = [sys.executable, "-m", "tests.load.simulate.seeds.plant", bug.name, str(bug.found_by), str(SEEDS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout, f"{bug.what} Nobody noticed."
