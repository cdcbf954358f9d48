"""One system for all tests of KV caches that are too small."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.system.conftest import MIB, System, started

WORKERS = 2
ROOM = 1808  # tokens of this model in the KV cache of an instance; it has a context of 4096


@contextmanager
def small_system(directory: pytest.TempPathFactory, *options: str) -> Iterator[System]:
    """Two instances, each with little room, in half of which contexts stay."""
    kv = ("--kv-bytes", str(MIB), "--context-share", "0.5")
    with started(directory.mktemp("small"), "--min-instances", str(WORKERS), *kv, *options) as running:
        yield running


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with small_system(tmp_path_factory) as running:
        yield running
