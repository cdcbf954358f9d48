"""The environment of other people's clients, and the system that they ask."""

from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT
from tests.system.conftest import System, started

BIN = ROOT / ".clients" / "bin"


@pytest.fixture(scope="package")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with started(tmp_path_factory.mktemp("clients"), "--max-instances", "1") as running:
        yield running
