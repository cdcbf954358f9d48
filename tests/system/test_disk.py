"""A model at zero whose host died: it is read again from its packed form, and the request that wakes it is answered."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.checkpoints import copy_checkpoint
from tests.system.conftest import System, started
from tests.system.test_holding import body, eventually, sleeps, stream, token_ids

PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def system(directory: Path) -> Iterator[System]:
    model = copy_checkpoint("llama", directory)
    # A worker that kept the parameters would need no host.
    options = ("--workers", "1", "--min-instances", "0", "--dtype", "bfloat16", "--no-keep-parameters")
    with started(directory, *options, "--model", f"k={model}") as running:
        yield running


def until_packed(model: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    # Its name also tells the layout, which depends on the CPU.
    while not list(model.glob("livescale-bfloat16*.packed")):
        assert time.monotonic() < deadline, f"no packed form was written in {model}"
        time.sleep(0.05)


@pytest.mark.system
@pytest.mark.slow
async def test_a_model_at_zero_wakes_after_its_host_was_killed(system: System, directory: Path) -> None:
    model = directory / "llama-copy"
    async with aiohttp.ClientSession(system.url, timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS)) as http:
        spec = {"name": "k", "path": str(model), "dtype": "bfloat16", "min_instances": 0}
        async with http.post("/admin/v1/models", json={**spec, "downscale_to_zero_delay_s": 1.0}) as answer:
            assert answer.status == 201, await answer.text()
        before = token_ids(await stream(http, body("k")))
        await asyncio.to_thread(until_packed, model)
        await eventually(system, sleeps)
        [host] = [one for one in (await asyncio.to_thread(system.status))["processes"] if one["service"] == "host"]
        os.kill(int(host["pid"]), signal.SIGKILL)
        assert token_ids(await stream(http, body("k"))) == before
    log = await asyncio.to_thread((directory / "up.log").read_text)
    assert "packed form" in log.split("model_packed")[-1]
