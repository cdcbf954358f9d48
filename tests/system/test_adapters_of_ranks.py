"""Adapters of an instance of two workers: loaded, used beside the base model, evicted, and past a rank's death."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from livescale.load.make_adapter import make_adapter
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import System, started
from tests.system.test_adapters import ALPHA, MIB, RANK, AdaptedSystem, check, merged, post, send
from tests.system.test_system import PATIENCE_SECONDS, workers

pytestmark = pytest.mark.system

OPTIONS = ("--workers", "3", "--tensor-parallel-size", "2", "--adapter-bytes", str(MIB), "--transport", "socket")
NAMES = ("m", "mine", "other")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdaptedSystem]:
    """Three workers, two of which are an instance, and an adapter from the start."""
    directory = tmp_path_factory.mktemp("adapters-of-ranks")
    base = tiny_checkpoint("qwen2")
    adapters = {
        name: make_adapter(directory / name, base, RANK, ALPHA, seed=seed) for seed, name in enumerate(NAMES[1:])
    }
    checkpoints = {name: merged(adapter, directory / f"{name}-merged", "qwen2") for name, adapter in adapters.items()}
    with started(directory, "--lora", f"mine={adapters['mine']}", *OPTIONS, family="qwen2") as system:
        yield AdaptedSystem(system, adapters, {"m": base, **checkpoints}, directory / "up.log")


def wait_until_two_serve(system: System) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(workers(system, "serving")) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)


async def test_adapters_are_right_on_two_ranks(adapted: AdaptedSystem) -> None:
    body = {"lora_name": "other", "lora_path": str(adapted.adapters["other"])}
    assert (await post(adapted.system, "/v1/load_lora_adapter", body))[0] == 200
    check(adapted, await send(adapted.system, 4, NAMES), 4)


# The first rank's death ends the instance as that of a worker does that is one alone, which `test_adapters` sees.
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
async def test_tokens_stay_right_when_a_rank_dies(adapted: AdaptedSystem, rank: int) -> None:
    system, names = adapted.system, ("m", "mine")
    before = await send(system, 20, names)
    check(adapted, before, 20)
    status = system.status()
    pids = {process["id"]: process["pid"] for process in status["processes"]}
    (instance,) = status["instances"]
    sending = asyncio.create_task(send(system, 20, names))
    await asyncio.sleep(0.3)
    os.kill(pids[instance["workers"][rank]], signal.SIGKILL)
    after = await sending
    for name in names:
        told = [{index: record.token_ids for index, record in each[name].items()} for each in (before, after)]
        assert told[0] == told[1], name
    await asyncio.to_thread(wait_until_two_serve, system)
