"""Processes that die or freeze while parameters move: real processes, real signals, links slow enough to be hit.

Streams run meanwhile, and more of them once the new instances serve: all with the tokens of an undisturbed run.
"""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from livescale.shared.messages.parameters import DType
from livescale.shared.messages.scaling import ScaleRecord
from tests.system.conftest import System
from tests.system.scaling import watching
from tests.system.slow_links.conftest import two_models
from tests.system.under_load import SystemUnderLoad, at_once

MODELS: tuple[tuple[str, DType], ...] = (("m", "float32"), ("half", "bfloat16"))
STREAMS, TOKENS_EACH = 9, 80


@pytest.fixture(scope="module")
def stages(slow_system: System) -> Iterator[dict[str, SystemUnderLoad]]:
    """A model in each of two formats."""
    streams = [at_once(model, dtype, STREAMS, TOKENS_EACH) for model, dtype in MODELS]
    with two_models(slow_system, streams) as made:
        yield made


@pytest.fixture
def slow(stages: dict[str, SystemUnderLoad]) -> SystemUnderLoad:
    return stages["m"]


@pytest.fixture
def half(stages: dict[str, SystemUnderLoad]) -> SystemUnderLoad:
    return stages["half"]


def chain_of(record: ScaleRecord) -> list[str]:
    assert record.plan is not None
    return max(record.plan.paths, key=len)[1:]


@pytest.mark.system
async def test_a_hop_killed_in_the_middle_of_a_chain_is_bridged_and_nothing_is_sent_twice(
    slow: SystemUnderLoad,
) -> None:
    async with watching(slow) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        await scaling.have(4)
        await watch.until(lambda: len(watch.blocks) == 3, "every target has a block")
        record = watch.plan_of(next(iter(watch.blocks)))
        hop, last = chain_of(record)  # the third target is fed by the host
        loading = scaling.load()
        await scaling.signal(hop, signal.SIGKILL)
        watch.lose(hop)  # before it has been started again
        await watch.until(lambda: watch.whole(last), "the one behind is whole")
        assert watch.replanned(record.id) == [last]
        assert watch.received_bytes(last) == scaling.model_bytes
        await watch.until(lambda: len(watch.serving()) == 4, "the killed one is replaced")
        await scaling.check("hop killed", loading)


@pytest.mark.system
async def test_a_source_killed_in_mid_transfer_is_replaced_and_nothing_is_sent_twice(half: SystemUnderLoad) -> None:
    async with watching(half) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        [source] = watch.serving()
        await scaling.have(2)
        await watch.until(lambda: len(watch.blocks) == 1, "the target has a block")
        [target] = watch.blocks
        record = watch.plan_of(target)
        assert record.plan is not None
        assert record.plan.paths[0][0] == source
        loading = scaling.load()
        await scaling.signal(source, signal.SIGKILL)
        watch.lose(source)  # before it has been started again
        await watch.until(lambda: watch.whole(target), "the target is whole")
        assert watch.replanned(record.id) == [target]
        assert watch.received_bytes(target) == scaling.model_bytes
        await watch.until(lambda: len(watch.serving()) == 2, "two serve")
        await scaling.check("source killed", loading)


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(("whom", "model"), [("target", "half"), ("source", "m")])
async def test_a_worker_stopped_in_mid_transfer_is_replaced_and_wakes_as_a_spare(
    stages: dict[str, SystemUnderLoad], whom: str, model: str
) -> None:
    async with watching(stages[model]) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        [source] = watch.serving()
        await scaling.have(2)
        await watch.until(lambda: len(watch.blocks) == 1, "the target has a block")
        [target] = watch.blocks
        victim = target if whom == "target" else source
        epoch = watch.reports[victim].epoch
        loading = scaling.load()
        pid = await scaling.signal(victim, signal.SIGSTOP)
        try:
            watch.lose(victim)
            await watch.until(lambda: len(watch.serving()) == 2, "others serve instead")
            await scaling.check(f"{whom} stopped", loading)
        finally:
            os.kill(pid, signal.SIGCONT)
        await watch.until(lambda: watch.state(victim) == "spare" and watch.reports[victim].epoch > epoch, "it is spare")
        await watch.until(lambda: watch.reports[victim].flows_out == 0, "it sends nothing any more")
        if whom == "source":
            assert watch.received_bytes(target) == scaling.model_bytes
        await scaling.have(4)
        await watch.until(lambda: len(watch.serving()) == 4, "it can be used again")


@pytest.mark.system
async def test_a_planner_killed_in_mid_scale_goes_on_with_it_when_it_is_back(slow: SystemUnderLoad) -> None:
    async with watching(slow) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        await scaling.have(3)
        await watch.until(lambda: len(watch.blocks) == 2, "every target has a block")
        targets = list(watch.blocks)
        scale = watch.plan_of(targets[0]).id
        loading = scaling.load()
        await scaling.signal("planner-0", signal.SIGKILL)
        await watch.until(lambda: watch.records[scale].state == "done", "the scale is done")
        await watch.until(lambda: len(watch.serving()) == 3, "every worker has said that it serves")
        assert [watch.received_bytes_in_all(target) for target in targets] == [scaling.model_bytes] * 2
        await scaling.check("planner killed", loading)
        told = await asyncio.to_thread(slow.system.command, "why", "m")
        assert f"{scale} done: 2 new instances serve" in told.stdout


@pytest.mark.system
@pytest.mark.slow
async def test_a_host_killed_while_it_sends_reads_again_and_sends_what_is_missing(half: SystemUnderLoad) -> None:
    async with watching(half) as scaling:
        watch = scaling.watch
        await scaling.rest(0)
        await scaling.have(1)
        await watch.until(lambda: len(watch.blocks) == 1, "the target has a block")
        [target] = watch.blocks
        scale = watch.plan_of(target).id
        loading = scaling.load()
        await scaling.signal("host-0", signal.SIGKILL)
        await watch.until(lambda: watch.records[scale].state == "done", "the scale is done")
        assert watch.received_bytes(target) == scaling.model_bytes
        assert watch.replanned(scale)
        await watch.until(lambda: watch.serving() == [target], "its report has come too")
        await scaling.check("host killed", loading)
