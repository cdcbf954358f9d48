"""The disk of the NATS server's store is full: all goes on, and once there is room nothing is missing."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import started
from tests.system.under_load import PATIENCE_SECONDS, SystemUnderLoad, make_streams, register

TOKENS = 100
ROOM_BYTES = 1 << 30


@dataclass
class Disk:
    """A file system of its own, in memory, whose size can be changed."""

    path: Path

    def mount(self) -> None:
        run("mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", self.path)

    def unmount(self) -> None:
        run("umount", "--lazy", self.path)

    def fill(self) -> None:
        """No page more than is in use."""
        seen = os.statvfs(self.path)
        run("mount", "-o", f"remount,size={(seen.f_blocks - seen.f_bfree) * seen.f_frsize}", self.path)

    def make_room(self) -> None:
        run("mount", "-o", f"remount,size={ROOM_BYTES}", self.path)


def run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    disk = Disk(path)
    try:
        disk.mount()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only who may mount file systems can fill one up")
    yield disk
    disk.unmount()


@pytest.fixture
def loaded(tmp_path: Path, disk: Disk) -> Iterator[SystemUnderLoad]:
    """Two workers, one of which serves; the system's own directory is on that disk."""
    streams = make_streams("m", "float32", 6, TOKENS)
    options, environment = ("--transport", "socket", "--max-instances", "2"), {"TMPDIR": str(disk.path)}
    with started(tmp_path, *options, environment=environment) as system:
        yield SystemUnderLoad(system, streams)


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(0.1)


def restarted(loaded: SystemUnderLoad) -> bool:
    """Whether all processes that were killed are back; while the registry is away this is unknown."""
    asked = loaded.system.command("status", "--json", check=False)
    if asked.returncode != 0:
        return False
    processes = json.loads(asked.stdout)["processes"]
    return loaded.killed.isdisjoint(int(one["pid"]) for one in processes)


@pytest.mark.system
@pytest.mark.slow
async def test_a_full_disk_stops_nothing_and_what_was_not_saved_is_saved_when_there_is_room(
    tmp_path: Path, disk: Disk, loaded: SystemUnderLoad
) -> None:
    def lines(*words: str) -> list[str]:
        log = (tmp_path / "up.log").read_text().splitlines()
        return [line for line in log if all(word in line for word in words)]

    loaded.rest(serving=1, spare=1)
    disk.fill()
    loading = asyncio.create_task(loaded.load())
    for index in range(12):  # more than the last page of the store's file holds
        spec = {"name": f"late-{index}", "path": str(tiny_checkpoint("llama")), "dtype": "float32", "min_instances": 0}
        await register(loaded.system.url, spec)
    scaled = await asyncio.to_thread(loaded.system.command, "scale", "m", "--instances", "2", "--wait")
    assert "done" in scaled.stdout
    loaded.check("full disk", await loading)
    await until(lambda: bool(lines("up ", "nats-server writes nothing", "is full")), "up says so")
    assert 1 <= len(lines("registry-0", "not_saved")) <= 6

    disk.make_room()
    await until(lambda: bool(lines("registry-0", "saved_after_all")), "the registry's state is saved")
    await until(lambda: bool(lines("planner-0", "saved_after_all")), "the planner's records are saved")
    status = await asyncio.to_thread(loaded.system.status)
    pids = {one["id"]: int(one["pid"]) for one in status["processes"]}
    loaded.kill_process(pids["registry-0"])
    loaded.kill_process(pids["planner-0"])
    await until(lambda: restarted(loaded), "both are started again")
    status = await asyncio.to_thread(loaded.system.status)
    assert {f"late-{index}" for index in range(12)} < {model["name"] for model in status["models"]}
    assert "1 new instances serve" in (await asyncio.to_thread(loaded.system.command, "why", "m")).stdout
