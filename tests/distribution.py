"""How the tests are spread over processes: what shares costly fixtures is run by one of them, and whole systems first.

Files that use the same fixtures and cached models are run by one process, for another would make them anew. Systems
wait for most of their time, and their tests decide when the suite ends: so they begin it, and the processes of the
others give way to theirs.
"""

import os
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

from livescale.services.supervisor.commands import WORKER_NICE

# Tests of these start no more than a nats-server or one service each, and may run beside a whole system.
LIGHT = {"cli", "fuzz", "gateway", "shared", "test_nats_server.py"}
# Two groups of tests that start systems, which run at the same time, as systems mostly wait: those in tests/system, and
# those of other parts, such as the demo. The first take several times as long, and the suite no less than they do: so
# some files and folders whose systems no other one uses are of the second group.
SYSTEM, ELSEWHERE = "system", "system-elsewhere"
WITH_ELSEWHERE = {
    "leaving",
    "test_holding.py",
    "test_roles.py",
    "test_tracing.py",
}
# Tests of these make the same models with transformers.
ENGINE = ("worker", "engine")
HERE = Path(__file__).parent


def group_of(item: pytest.Item) -> str | None:
    """The name of the tests that one process runs, where these start whole systems."""
    part = _parts(item.path)[0]
    if not item.get_closest_marker("system") or part in LIGHT:
        return None
    return SYSTEM if part == SYSTEM and _parts(item.path)[1] not in WITH_ELSEWHERE else ELSEWHERE


def turn(item: pytest.Item) -> int:
    """When it is begun: what takes longest comes first, so that all processes end at about the same time."""
    group, parts = group_of(item), _parts(item.path)
    if group is not None:
        return 0 if group == SYSTEM else 1
    return 2 if parts[:2] == ENGINE else 3 if parts[0] == ENGINE[0] else 4


def give_way(item: pytest.Item) -> None:
    """Have a process that starts no systems be as nice as workers, which would hardly run beside it otherwise."""
    if "PYTEST_XDIST_WORKER" in os.environ and group_of(item) is None and os.nice(0) < WORKER_NICE:
        os.nice(WORKER_NICE - os.nice(0))


@cache  # there are ten tests to a file
def _parts(path: Path) -> tuple[str, ...]:
    """The parts of the path below this folder."""
    return path.relative_to(HERE).parts


class Distribution(LoadGroupScheduling):  # type: ignore[misc]
    """Gives a process all tests of a group, of the engine or of a file."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        if scope != nodeid:
            return scope
        path = nodeid.partition("::")[0]
        return "engine" if Path(path).parts[1:3] == ENGINE else path
