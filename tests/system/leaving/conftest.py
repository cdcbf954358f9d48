"""One system for all tests of workers that leave as they should: an instance drains, a worker is asked to stop."""

from collections.abc import Iterator

import pytest

from tests.system.conftest import System, start, stop


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    running = start(tmp_path_factory.mktemp("leaving"))
    try:
        yield running
    finally:
        assert stop(running) == 0
