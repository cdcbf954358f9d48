"""Memory runs out in the middle of a load: told with its reason, tried again, and others notice nothing."""

import asyncio
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import MIB, started
from tests.system.under_load import PATIENCE_SECONDS, SystemUnderLoad, make_streams, register

TOKENS = 100
MARGIN_BYTES = 2 * MIB  # less than the model takes


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderLoad]:
    """Two workers, one of which serves."""
    streams = make_streams("m", "float32", 6, TOKENS)
    with started(tmp_path_factory.mktemp("memory"), "--transport", "socket", "--max-instances", "2") as system:
        yield SystemUnderLoad(system, streams)


@contextmanager
def short_of_memory(pid: int) -> Iterator[None]:
    """The kernel gives this process hardly any more address space."""
    taken = int(re.findall(r"VmSize:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) * 1024
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (taken + MARGIN_BYTES, hard))
    try:
        yield
    finally:
        if Path(f"/proc/{pid}").exists():
            resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, f"never came: {what}"


@pytest.mark.system
@pytest.mark.slow
async def test_a_host_without_memory_says_so_and_reads_the_model_when_it_has_some(loaded: SystemUnderLoad) -> None:
    system = loaded.system

    def state() -> str:
        return next(str(model["state"]) for model in system.status()["models"] if model["name"] == "late")

    loaded.rest(serving=1, spare=1)
    loading = asyncio.create_task(loaded.load())
    spec = {"name": "late", "path": str(tiny_checkpoint("llama")), "dtype": "float32", "min_instances": 1}
    with short_of_memory(loaded.pids()["host-0"]):
        await register(system.url, spec)
        await until(lambda: state() == "failed", "the model cannot be read")
        why = (await asyncio.to_thread(system.command, "why", "late")).stdout
        assert re.search(r"late could not be read: .*(memory|MemoryError)", why), why
        loaded.check("host without memory", await loading)
    await until(lambda: state() == "ready", "the model is read after all")
    await asyncio.to_thread(loaded.rest, 2, 0)
