"""One system for all tests of what happens while parameters move, behind links so slow that a model takes a while."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import System, started
from tests.system.scaling import WORKERS
from tests.system.under_load import ExpectedStreams, SystemUnderLoad, register, remove

RATE = 1e6  # bytes a second: two and four seconds for a whole model


@pytest.fixture(scope="package")
def slow_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Four workers that go live. Spares keep no parameters: each scale is to move them."""
    options = ("--link-rate", str(RATE), "--live", "zigzag", "--kill-hung-s", "0", "--no-keep-parameters")
    with started(tmp_path_factory.mktemp("slow"), "--workers", str(WORKERS), *options) as running:
        yield running


@contextmanager
def two_models(system: System, streams: list[ExpectedStreams], **half: object) -> Iterator[dict[str, SystemUnderLoad]]:
    """The system's own model and `half`, another one, in bfloat16."""
    spec = {"name": "half", "path": str(tiny_checkpoint("llama")), "dtype": "bfloat16", "min_instances": 0, **half}
    asyncio.run(register(system.url, spec))
    try:
        yield {one.model: SystemUnderLoad(system, one) for one in streams}
    finally:
        asyncio.run(remove(system.url, "half"))
