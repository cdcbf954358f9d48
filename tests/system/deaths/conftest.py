"""One system for all tests of processes that die, hang or stand still beside streams."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.conftest import started
from tests.system.under_load import SystemUnderLoad, make_streams

COUNT, TOKENS = 12, 120
HANG_SECONDS = 6.0


@pytest.fixture(scope="package")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deaths") / "up.log"


@pytest.fixture(scope="package")
def loaded(log: Path) -> Iterator[SystemUnderLoad]:
    """Three workers, two of which serve; two routers. SIGUSR1 hangs any of them, and they wake again."""
    streams = make_streams("m", "float32", COUNT, TOKENS)
    instances = ("--workers", "3", "--min-instances", "2", "--max-instances", "2")
    # What hangs is to wake by itself.
    alone = ("--transport", "socket", "--routers", "2", "--kill-hung-s", "0")
    paths = Path(__file__).with_name("hang"), *filter(None, [os.environ.get("PYTHONPATH")])
    environment = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "HANG_SECONDS": str(HANG_SECONDS)}
    with started(log.parent, *instances, *alone, environment=environment) as running:
        yield SystemUnderLoad(running, streams)


@pytest.fixture
def rested(loaded: SystemUnderLoad) -> SystemUnderLoad:
    loaded.rest(serving=2, spare=1)
    return loaded
