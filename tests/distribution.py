"""How the tests are spread over processes: what shares costly fixtures is run by one of them, and whole systems first.

Files that use the same fixtures and cached models are run by one process, for another would make them anew. Systems
wait for most of their time, and with all of them in one process they decide when the suite ends: so they begin it, and
the others' processes give way to theirs.
"""

import os
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

from livescale.services.supervisor.commands import WORKER_NICE

SYSTEM = "system"
# Tests of these start no more than a nats-server or one service each, and may run beside a whole system.
LIGHT = {"cli", "fuzz", "gateway", "shared", "test_nats_server.py"}
# They make the same models with transformers.
ENGINE = ("worker", "engine")
HERE = Path(__file__).parent
BEGUN = pytest.StashKey[bool]()


def is_of_a_system(item: pytest.Item) -> bool:
    """Whether it is to be run by the one process that runs whole systems."""
    return item.get_closest_marker("system") is not None and item.path.relative_to(HERE).parts[0] not in LIGHT


def turn(item: pytest.Item) -> int:
    """When it is begun: what takes longest comes first, so that all processes end at about the same time."""
    parts = item.path.relative_to(HERE).parts
    if is_of_a_system(item):
        return 0
    return 1 if parts[:2] == ENGINE else 2 if parts[0] == ENGINE[0] else 3


def give_way(item: pytest.Item) -> None:
    """A process whose first test is of no system is as nice as workers, which would hardly run beside it otherwise."""
    if BEGUN in item.config.stash:
        return
    item.config.stash[BEGUN] = True
    if "PYTEST_XDIST_WORKER" in os.environ and not is_of_a_system(item):
        os.nice(WORKER_NICE)


class Distribution(LoadGroupScheduling):
    """Gives a process all tests of a group, of the engine or of a file."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        if scope != nodeid:
            return scope
        path = nodeid.partition("::")[0]
        return "engine" if Path(path).parts[1:3] == ENGINE else path
