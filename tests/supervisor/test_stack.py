"""A whole system started by `livescale up`: real processes, one tiny model."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.supervisor.children import is_alive, until

pytestmark = pytest.mark.system

# NATS, five control processes, the host, two workers.
PROCESSES = 9

LIVESCALE = (sys.executable, "-m", "livescale.services.cli.main")
SMALL = ("--workers=2", "--port=0", "--transport=socket", f"--arena-bytes={1 << 26}", f"--kv-bytes={1 << 26}")


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    monkeypatch.delenv("NATS_URL", raising=False)
    monkeypatch.setenv("LIVESCALE_STATE_DIR", str(tmp_path))
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [*LIVESCALE, "up", "--model", f"tiny={tiny_checkpoint('llama')}", *SMALL],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        yield process
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    sys.stderr.write((tmp_path / "log").read_text())  # shown if the test failed


def run(*words: str) -> str:
    return subprocess.run([*LIVESCALE, *words], check=True, capture_output=True, text=True, timeout=60).stdout


def complete(url: str) -> dict[str, Any]:
    body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 4, "seed": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


def serves(url: str) -> bool:
    try:
        return bool(complete(url)["choices"])
    except urllib.error.HTTPError as error:
        error.close()
        return False


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_system_serves_scales_survives_and_leaves_nothing_behind(up: subprocess.Popen[str]) -> None:
    assert up.stdout is not None
    ready = json.loads(up.stdout.readline())
    assert ready["ready"] is True
    assert ready["urls"] == [ready["url"]]
    assert set(ready["memory_bytes"]) >= {"worker-0", "worker-1", "registry-0", "nats"}
    assert max(ready["memory_bytes"].values()) < 1e9
    assert complete(ready["url"])["usage"]["completion_tokens"] == 4

    # The other commands find it without being told where it is.
    status = json.loads(run("status", "--json"))
    assert len(status["processes"]) == PROCESSES - 1
    assert [each["state"] for each in status["instances"]] == ["serving"]
    run("scale", "tiny", "--instances", "2", "--wait")
    assert len(json.loads(run("status", "--json"))["instances"]) == 2
    assert "by operator" in run("why", "tiny")

    # The bus server dies and comes back where it was; meanwhile requests are refused.
    os.kill(children_of(up.pid)[0], signal.SIGKILL)
    asyncio.run(until(lambda: serves(ready["url"])))

    children = children_of(up.pid)
    up.kill()
    asyncio.run(until(lambda: not any(is_alive(pid) for pid in children)))


def test_ctrl_c_stops_everything_even_while_it_starts(up: subprocess.Popen[str], tmp_path: Path) -> None:
    asyncio.run(until(lambda: len(children_of(up.pid)) == PROCESSES))
    children = children_of(up.pid)
    up.send_signal(signal.SIGINT)
    assert up.wait(timeout=120) == 0
    assert not any(is_alive(pid) for pid in children)
    assert not (tmp_path / "run.json").exists()
    log = (tmp_path / "log").read_text()
    assert log.endswith("stopped\n")
    assert "Error" not in log
