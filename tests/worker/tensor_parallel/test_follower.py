"""A rank that is led brings and forgets adapters in the order of the steps that it is told."""

import asyncio

import pytest

from livescale.services.worker.engine.contract import AdapterData, AdapterUnavailable
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.tensor_parallel.follower import RankAdapters
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.model_parallel import RankAdapter
from livescale.shared.runtime.clock import SystemClock
from tests.worker.engine.adapted import Made, adapter
from tests.worker.engine.made_up import LATENCY


def made() -> Made:
    """An adapter. It is not made as tests are collected, as transformers takes long to import."""
    return adapter("qwen2-cut-tied", 1, "float32")


def made_version() -> str:
    return made()[0].version


async def fetched(version: str) -> AdapterData:
    manifest, block = made()
    return AdapterData(manifest, memoryview(block))


def rank() -> tuple[RankAdapters, ModelledRunner]:
    runner = ModelledRunner(1 << 20, 16, LATENCY, 1.0, SystemClock())
    runner.fetch_adapter = fetched
    return RankAdapters(runner), runner


def ask(after: int) -> RankAdapter:
    return RankAdapter(instance="i", version=made_version(), after=after)


async def test_one_that_was_to_be_forgotten_first_is_brought_again() -> None:
    adapters, runner = rank()
    await adapters.bring(ask(0))
    assert made_version() in runner.adapters
    again = asyncio.create_task(adapters.bring(ask(1)))  # which step 1 forgets
    await asyncio.sleep(0)
    assert not again.done()
    await adapters.forget(made_version())
    adapters.ran(1)
    await again
    assert made_version() in runner.adapters


async def test_one_that_is_forgotten_on_its_way_is_not_kept() -> None:
    adapters, runner = rank()
    coming = asyncio.Event()

    async def late(version: str) -> AdapterData:
        await coming.wait()
        return await fetched(version)

    runner.fetch_adapter = late
    bringing = asyncio.create_task(adapters.bring(ask(0)))
    await asyncio.sleep(0)
    await adapters.forget(made_version())
    coming.set()
    with pytest.raises(Refusal, match="not wanted any more"):
        await bringing
    assert made_version() not in runner.adapters


async def test_one_that_does_not_come_is_refused() -> None:
    adapters, runner = rank()

    async def never(version: str) -> AdapterData:
        raise AdapterUnavailable("nobody has it")

    runner.fetch_adapter = never
    with pytest.raises(Refusal, match=r"503: adapter .* nobody has it"):
        await adapters.bring(ask(0))
