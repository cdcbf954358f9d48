"""Adapters in a cluster under virtual time: room for few of them, and others in their place while requests run."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.simulate.client import find_adapter, send, submit_of
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.disk import made_up_adapter
from livescale.load.simulate.start import quiet, register, until
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Named, Register
from livescale.shared.messages.requests import AdapterUse
from livescale.shared.messages.scaling import Scale
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import MANIFEST, REGISTER, REMOVE, SCALE
from tests.load.simulate.clusters import CONFIG, PATH, VOCABULARY, asks, model, registered, settings, until_serving
from tests.worker.engine.made_up import made_up_tokens

SIZE = made_up_adapter(Path("/adapters/x"), CONFIG, "bfloat16").size_bytes
KV_TOKEN_BYTES = 12 * 2 * 16 * 2
FIRST = -10  # the priority of a request that goes before all that came with none


async def adapter(made: VirtualCluster, name: str) -> AdapterUse:
    """Register an adapter, and return what requests say of it."""
    await register(made, ModelSpec(name=name, path=f"/adapters/{name}", base="m"))

    async def is_read() -> bool:
        return await find_adapter(made.operator, name) is not None

    await until(is_read)
    found = await find_adapter(made.operator, name)
    assert found is not None
    return found


def ask_with(made: VirtualCluster, ask: Ask, use: AdapterUse, priority: int = 0) -> asyncio.Task[RequestRecord]:
    submit = replace(submit_of(made.gateway, "m", ask, 100.0), adapter=use, priority=priority)
    return asyncio.create_task(send(made.gateway, ask, submit, lambda piece: None))


async def check(made: VirtualCluster, record: RequestRecord, ask: Ask, use: AdapterUse) -> None:
    """It ended with the tokens of a request that nothing happens to."""
    assert find_fault(record) is None
    version = (await made.operator.call(MANIFEST, Named(model="m"), timeout=5.0)).version
    alone = replace(submit_of(made.gateway, "m", ask, 1.0), adapter=use)
    assert record.token_ids == made_up_tokens(version, VOCABULARY, alone)


def in_turn(asked: Sequence[tuple[Ask, str, int]]) -> float:
    """Send these one soon after the other, with adapters and priorities, where there is room for one adapter and a long
    prompt. Returns after how many seconds all were answered, and checks the answers."""
    told = settings(1)
    few = replace(told.worker, adapter_bytes=SIZE, kv_bytes=1_200 * KV_TOKEN_BYTES)

    async def main() -> float:
        async with virtual_cluster(replace(told, worker=few)) as made:
            await registered(made)
            uses = {name: await adapter(made, name) for name in ("x", "y")}
            began, running = made.now, list[asyncio.Task[RequestRecord]]()
            for ask, name, priority in asked:
                running.append(ask_with(made, ask, uses[name], priority))
                await asyncio.sleep(0.05)
            for (ask, name, _), one in zip(asked, running, strict=True):
                await check(made, await one, ask, uses[name])
            return made.now - began

    with quiet():
        return virtual_time.run(main())


def test_a_request_that_waits_for_kv_blocks_keeps_no_adapter_from_one_that_has_them() -> None:
    first, second, third = asks(3, 10.0, 600, 40)
    assert in_turn([(first, "x", 0), (second, "y", 0), (third, "x", 0)]) < 5.0


def test_a_request_that_comes_first_and_has_its_adapter_takes_none_from_one_whose_kv_blocks_it_waits_for() -> None:
    [short, *long] = [*asks(1, 1.0, 40, 200), *asks(2, 1.0, 700, 40)]
    has_blocks, has_adapter = (replace(ask, index=index) for index, ask in enumerate(long, start=1))
    assert in_turn([(short, "x", 0), (has_blocks, "y", 0), (has_adapter, "x", FIRST)]) < 5.0


def test_an_instance_does_not_wait_for_the_adapter_that_the_one_before_it_waited_for() -> None:
    told = settings(1)
    few = replace(told.worker, adapter_bytes=SIZE, keep_parameters=True)

    async def main() -> None:
        async with virtual_cluster(replace(told, worker=few)) as made:
            await register(made, model("m", PATH, min_instances=0))
            [x, y] = [await adapter(made, name) for name in ("x", "y")]
            prompts = asks(3, 1.0, 40, 200)
            first, leaving = ask_with(made, prompts[0], x), ask_with(made, prompts[1], y)
            await until_serving(made, 1)
            await asyncio.sleep(0.1)
            await made.operator.call(SCALE, Scale(model="m", instances=0), timeout=5.0)
            leaving.cancel()
            last = ask_with(made, prompts[2], y)  # at the next instance, which is there as soon as the first one ends
            await check(made, await first, prompts[0], x)
            await check(made, await last, prompts[2], y)

    with quiet():
        virtual_time.run(main())


@pytest.mark.parametrize("then", ["replaced", "removed", "replaced, and so is the registry"])
def test_a_request_that_has_begun_ends_elsewhere_though_its_adapter_is_registered_no_more(
    then: Literal["replaced", "removed", "replaced, and so is the registry"],
) -> None:
    async def main() -> None:
        async with virtual_cluster(settings(2)) as made:
            await registered(made, min_instances=2)
            await until_serving(made, 2)
            use, [ask] = await adapter(made, "x"), asks(1, 1.0, 40, 1_500)
            running = ask_with(made, ask, use)
            await asyncio.sleep(1.0)
            if then == "removed":
                await made.operator.call(REMOVE, Named(model="x"), timeout=5.0)
            else:
                other = ModelSpec(name="x", path="/adapters/other")
                await made.operator.call(REGISTER, Register(spec=other, named=["path"]), timeout=5.0)
            await asyncio.sleep(6.0 if then == "removed" else 1.0)  # until it is forgotten
            assert await find_adapter(made.operator, "x") != use
            if then == "replaced, and so is the registry":
                await made.kill("registry-0")
                made.start("registry-0")
            [worker] = [id for id in ("worker-0", "worker-1") if runs_here(made, id)]
            await made.kill(worker)
            await check(made, await running, ask, use)

    with quiet():
        virtual_time.run(main())


def runs_here(made: VirtualCluster, worker: str) -> bool:
    scheduler = made.processes[worker].actor._serving.scheduler  # type: ignore[attr-defined]
    return scheduler is not None and not scheduler.is_empty
