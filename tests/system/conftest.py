"""A whole system as its user starts it: `livescale up` as a process, found by the line it prints."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from livescale.services.cli.status import ask_status
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.parameters import Family
from tests.checkpoints import tiny_checkpoint

LIVESCALE = Path(sys.executable).with_name("livescale")
MIB = 1024 * 1024
READY_SECONDS = 120.0
COMMAND_SECONDS = 120.0
NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass
class System:
    """A running `livescale up`."""

    process: subprocess.Popen[str]
    url: str
    nats_url: str
    urls: tuple[str, ...] = ()

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run another livescale command against this system."""
        env = {**os.environ, "NATS_URL": self.nats_url}
        return subprocess.run(
            [LIVESCALE, *words], env=env, check=check, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )

    def status(self) -> dict[str, Any]:
        """What `livescale status --json` shows, without the second that a process takes to start.

        It is asked in a thread, as the test may have an event loop that runs.
        """
        with ThreadPoolExecutor(1) as thread:
            answer: dict[str, Any] = thread.submit(asyncio.run, self._ask_status()).result(COMMAND_SECONDS)
        return answer

    async def _ask_status(self) -> Any:
        bus = await NatsBus.connect(self.nats_url, "default", "cli", timeout=COMMAND_SECONDS)
        try:
            return msgspec.to_builtins(await ask_status(bus))
        finally:
            await bus.close()

    def pids(self) -> list[int]:
        return [int(process["pid"]) for process in self.status()["processes"]]


def start(
    directory: Path,
    *options: str,
    family: Family = "llama",
    checkpoint: Path | None = None,
    environment: Mapping[str, str] = NOTHING_MORE,
) -> System:
    """Up with one tiny model called `m`, two workers, float32, free ports, and this in its environment."""
    words: Sequence[str | Path] = (
        *(LIVESCALE, "up", "--model", f"m={checkpoint or tiny_checkpoint(family)}"),
        *("--workers", "2", "--port", "0", "--dtype", "float32"),
        *("--arena-bytes", str(16 * MIB), "--kv-bytes", str(64 * MIB)),
        *options,
    )
    log = (directory / "up.log").open("w", encoding="utf-8")
    with log:
        # The pointer that `up` leaves for other commands is not to be in the way of a system of the user's own.
        env = {**os.environ, "LIVESCALE_STATE_DIR": str(directory), **environment}
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, cwd=directory, env=env)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait(READY_SECONDS)
        pytest.fail(f"up ended with {process.returncode}:\n{(directory / 'up.log').read_text()[-3000:]}")
    ready = json.loads(line)
    assert ready["ready"] is True
    return System(process, ready["url"], ready["nats_url"], tuple(ready["urls"]))


def stop(system: System) -> int:
    system.process.send_signal(signal.SIGINT)
    code = system.process.wait(READY_SECONDS)
    assert system.process.stdout is not None
    system.process.stdout.close()
    return code


@contextmanager
def started(
    directory: Path,
    *options: str,
    family: Family = "llama",
    checkpoint: Path | None = None,
    environment: Mapping[str, str] = NOTHING_MORE,
) -> Iterator[System]:
    """A system as `start` makes it, which ends as it should."""
    running = start(directory, *options, family=family, checkpoint=checkpoint, environment=environment)
    try:
        yield running
    finally:
        assert stop(running) == 0


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One system for all tests that leave it as they found it."""
    running = start(tmp_path_factory.mktemp("system"))
    try:
        yield running
    finally:
        pids = running.pids() if running.process.poll() is None else []
        assert stop(running) == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
