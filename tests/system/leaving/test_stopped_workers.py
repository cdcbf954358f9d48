"""A worker is asked to stop under load and started again, as `docker stop` and `up -d` do it: it serves again soon."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.system.conftest import LIVESCALE, MIB, System
from tests.system.under_load import KILL_AT, SystemUnderLoad, bound, make_streams, scale_in

SERVING_SECONDS = 60.0
STOP_SECONDS = 20.0  # what the stack gives a container before it kills it
# As in docker-compose.yml: number, port and address are chosen by the process itself.
WORKER = ("run", "worker", "--id", "auto", "--bind", "auto")


class Container:
    """A worker's process in place of its container."""

    def __init__(self, nats_url: str, log: Path) -> None:
        self._env = {**os.environ, "NATS_URL": nats_url, "LIVESCALE_HOST_NAME": "machine"}
        self._log = log
        self.start()

    def start(self) -> None:
        sizes = ("--arena-bytes", str(16 * MIB), "--kv-bytes", str(64 * MIB))
        with self._log.open("a") as log:
            self.process = subprocess.Popen((LIVESCALE, *WORKER, *sizes), env=self._env, stderr=log)

    def stop(self) -> int:
        """Ask it to end as `docker stop` does. Returns how it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


@pytest.fixture
def loaded(system: System) -> SystemUnderLoad:
    """Two workers, and room for a third, which is started by hand."""
    return SystemUnderLoad(system, make_streams("m", "float32", 9, 240))


def serving(loaded: SystemUnderLoad, pid: int) -> bool:
    status = loaded.system.status()
    ids = {one["id"] for one in status["processes"] if one["pid"] == pid and one["lease"] == "alive"}
    return any(one["state"] == "serving" for one in status["workers"] if one["id"] in ids)


async def serves(loaded: SystemUnderLoad, container: Container) -> float:
    """Wait until it serves. Returns for how long it took, in seconds; raises TimeoutError."""
    start = time.monotonic()
    async with asyncio.timeout(SERVING_SECONDS):
        while not await asyncio.to_thread(serving, loaded, container.process.pid):
            assert container.process.poll() is None, "it ended by itself"
            await asyncio.sleep(0.2)
    return time.monotonic() - start


@pytest.mark.system
async def test_a_worker_that_was_stopped_serves_again_within_a_minute(loaded: SystemUnderLoad, tmp_path: Path) -> None:
    container = Container(loaded.system.nats_url, tmp_path / "worker.log")
    try:
        await bound(loaded.system.url, 3, 3)
        await serves(loaded, container)
        loading = asyncio.create_task(loaded.load())
        await asyncio.sleep(KILL_AT)
        assert await asyncio.to_thread(container.stop) == 0
        container.start()
        took = await serves(loaded, container)
        print(f"serving {took:.1f} s after its start")  # noqa: T201 the figure that a reader of this test wants
        loaded.check("SIGTERM of a worker", await loading)
        log = (tmp_path / "worker.log").read_text()
        assert log.count("id=worker-machine-0") > 1
        assert "id=worker-machine-1" not in log
        assert await asyncio.to_thread(container.stop) == 0
        await scale_in(loaded.system.url)
        await asyncio.to_thread(loaded.rest, 1, 1)
        await bound(loaded.system.url, 1, 2)
    finally:
        container.process.kill()
        container.process.wait()
