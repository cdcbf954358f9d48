"""One system for all tests of workers that leave as they should: an instance drains, a worker is asked to stop."""

from collections.abc import Iterator

import pytest

from tests.system.conftest import System, started


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with started(tmp_path_factory.mktemp("leaving")) as running:
        yield running
