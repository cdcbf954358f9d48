"""One system for all tests of KV caches that are too small."""

from collections.abc import Iterator

import pytest

from tests.system.conftest import MIB, System, start, stop

WORKERS = 2
ROOM = 1808  # tokens of this model in the KV cache of an instance; it has a context of 4096


def start_small(directory: pytest.TempPathFactory, *options: str) -> System:
    """Two instances, each with little room, in half of which contexts stay."""
    kv = ("--kv-bytes", str(MIB), "--context-share", "0.5")
    return start(directory.mktemp("small"), "--min-instances", str(WORKERS), *kv, *options)


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    running = start_small(tmp_path_factory)
    try:
        yield running
    finally:
        assert stop(running) == 0
