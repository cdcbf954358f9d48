"""The modelled engine: its tokens depend on the request alone, and its time is that of the latency."""

import asyncio
from asyncio import timeout
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.worker.engine.contract import (
    AdapterData,
    AdapterMissing,
    AdapterUnavailable,
    BlockMissing,
    LayerwiseRun,
)
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.scheduling.batch import NO_BYTES, Batch, KvExport, KvSlice
from livescale.shared.messages.requests import AdapterUse, Sampling, Submit
from livescale.shared.simulation.virtual_time import run
from tests.clocks import LoopClock
from tests.worker.engine.made_up import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    LATENCY,
    LAYERS,
    VOCABULARY,
    loaded,
    manifest,
    serve,
)
from tests.worker.engine.modelled_engine import alone, chunk
from tests.worker.requests import random_prompt, submit

MOST_TOKENS = 40
LATENCY_512 = (10 + 51.2 + 1e-5 * 512**2) / 1e3


def requests(chance: Sequence[int]) -> list[Submit]:
    """One a number; every other one is sampled."""
    return [
        submit(
            f"r{index}",
            random_prompt(seed, 1 + seed % 300, VOCABULARY),
            max_tokens=1 + seed % MOST_TOKENS,
            sampling=Sampling(temperature=index % 2, seed=seed),
        )
        for index, seed in enumerate(chance)
    ]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9_999), min_size=1, max_size=6))
def test_tokens_are_the_same_in_any_batch_and_whoever_is_preempted(chance: list[int]) -> None:
    async def main() -> None:
        asked = requests(chance)
        served = await serve(await loaded(kv_blocks=28), *asked, kv_blocks=28)
        assert served.tokens == {request.request_id: await alone(request) for request in asked}

    run(main())


def test_a_cache_that_is_too_small_for_all_preempts_somebody() -> None:
    async def main() -> None:
        asked = [replace(request, max_tokens=120) for request in requests([295, 296, 297, 298])]
        served = await serve(await loaded(kv_blocks=50), *asked, kv_blocks=50)
        assert served.preempted > 0
        assert served.tokens == {request.request_id: await alone(request) for request in asked}

    run(main())


def test_any_worker_that_goes_on_with_a_request_makes_the_same_tokens() -> None:
    async def main() -> None:
        for request in requests([30, 31]):
            whole = await alone(replace(request, max_tokens=20))
            rest = await alone(replace(request, max_tokens=20, generated=whole[:7]))
            assert rest == whole[7:]

    run(main())


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({"prompt": [1, 2, 4]}, "v1"),
        ({"prompt": [2, 1, 3]}, "v1"),
        ({"sampling": Sampling(temperature=1.0, seed=0)}, "v1"),
        ({"sampling": Sampling(temperature=1.0, seed=8)}, "v1"),
        ({"adapter": AdapterUse(name="a", version="a1")}, "v1"),
        ({}, "v2"),
    ],
)
def test_tokens_differ_with_prompt_seed_adapter_and_model(changes: dict[str, Any], version: str) -> None:
    async def main() -> None:
        request = submit("a", [1, 2, 3], max_tokens=16, sampling=Sampling(seed=7))
        assert await alone(request) != await alone(replace(request, **changes), version)

    run(main())


def test_greedy_tokens_depend_on_no_seed() -> None:
    async def main() -> None:
        request = submit("a", [1, 2, 3], max_tokens=16, sampling=Sampling(seed=7))
        assert await alone(request) == await alone(replace(request, sampling=Sampling(seed=8)))

    run(main())


def test_no_token_ends_a_request_before_its_length() -> None:
    async def main() -> None:
        stops = [token for token in range(VOCABULARY) if token % 3]
        request = submit("a", [1, 2, 3], max_tokens=100, stop_token_ids=stops)
        tokens = await alone(request)
        assert len(tokens) == 100
        assert not set(tokens) & set(stops)
        assert len(set(tokens)) > 50

    run(main())


def test_a_step_takes_its_time_and_the_next_one_begins_after_it() -> None:
    async def main() -> None:
        served = await serve(await loaded(), submit("a", random_prompt(1, 100, VOCABULARY), max_tokens=11))
        prefill = 10 + 0.1 * 100 + 1e-5 * 100**2
        decode = [20 + 0.5 + 1e-3 * (100 + token) for token in range(1, 11)]
        assert served.seconds * 1e3 == pytest.approx(prefill + sum(decode))
        faster = await serve(await loaded(speed=4.0), submit("a", random_prompt(1, 100, VOCABULARY), max_tokens=11))
        assert served.seconds == pytest.approx(4 * faster.seconds)

    run(main())


def test_a_step_takes_as_long_whoever_stops_waiting_for_its_last_layer() -> None:
    async def main() -> None:
        runner = await loaded()
        runner.on_last_layer = lambda: None
        asyncio.get_running_loop().call_later(0.001, setattr, runner, "on_last_layer", None)
        await runner.step(Batch(1, (chunk([1] * 100),)))
        assert asyncio.get_running_loop().time() * 1e3 == pytest.approx(10 + 0.1 * 100 + 1e-5 * 100**2)

    run(main())


def test_rates_are_those_of_the_latency() -> None:
    async def main() -> None:
        runner = await loaded()
        await serve(runner, submit("a", random_prompt(1, 512, VOCABULARY), max_tokens=100))
        assert runner.rates.prefill_tokens_per_second == pytest.approx(512 / LATENCY_512, rel=0.01)
        assert runner.rates.decode_tokens_per_second == pytest.approx(1 / 0.0211, rel=0.01)

    run(main())


@pytest.mark.parametrize("way", ["step", "layer", "part"])
def test_rows_wait_for_their_adapter_or_fail_without_it(way: str) -> None:
    fetched = list[str]()

    async def fetch(version: str) -> AdapterData:
        fetched.append(version)
        if version == "a2":
            raise AdapterUnavailable("nobody has it")
        await asyncio.sleep(1.0)
        return AdapterData(manifest(version), NO_BYTES)

    async def main() -> None:
        runner = await loaded()

        async def run_one(version: str) -> None:
            chunks = (chunk([1, 2, 3], adapter=version),)
            if way == "step":
                await runner.step(Batch(1, chunks))
            elif way == "layer":
                await runner.run_layer([LayerwiseRun(list(chunks))])
            else:
                await runner.run_blocks(range(1), chunks, NO_BYTES)

        with pytest.raises(AdapterMissing, match="adapter a1 was not added"):
            await run_one("a1")
        runner.fetch_adapter = fetch
        with pytest.raises(AdapterMissing, match="adapter a2 did not come: nobody has it"):
            await run_one("a2")
        began = asyncio.get_running_loop().time()
        await run_one("a1")
        assert asyncio.get_running_loop().time() - began > 1.0
        await run_one("a1")
        assert fetched == ["a2", "a1"]

    run(main())


def test_no_layer_runs_before_its_block_came() -> None:
    async def main() -> None:
        runner, made = ModelledRunner(8 * BLOCK_BYTES, BLOCK_TOKENS, LATENCY, 1.0, LoopClock(0.0)), manifest()
        with pytest.raises(RuntimeError, match="no model is loaded"):
            await runner.add_block(0, NO_BYTES)
        assert await runner.load(made, 4_096) == 8
        started = LayerwiseRun([chunk([1, 2, 3])])
        with pytest.raises(BlockMissing, match=r"block 0 \(embedding\)"):
            await runner.run_layer([started])
        await runner.add_block(0, NO_BYTES)
        with pytest.raises(BlockMissing, match="block 1 "):
            await runner.run_layer([started])
        await runner.add_block(1, NO_BYTES)
        await runner.run_layer([started])
        assert started.done == 1
        with pytest.raises(BlockMissing, match="block 2 "):
            await runner.step(Batch(1, (chunk([1, 2, 3]),)))
        with pytest.raises(ValueError, match="blocks 0 to 5, not 6"):
            await runner.add_block(6, NO_BYTES)

    run(main())


@pytest.mark.parametrize("by_layers", [False, True])
def test_kv_is_laid_down_after_the_step_under_way_and_before_the_next_one_in_its_time(by_layers: bool) -> None:
    async def main() -> None:
        clock, runner, ends = LoopClock(0.0), await loaded(), list[tuple[str, float]]()
        begun = clock.now()
        runner.on_last_layer = lambda: ends.append(("last layer", clock.now() - begun))
        whole = KvSlice(range(4), 0, 64, range(LAYERS))
        copied = 4 * BLOCK_BYTES / (1e9 * LATENCY.copy)
        exports = (KvExport(1, range(1), 0, 3, (range(LAYERS),)),) if by_layers else ()

        async def note(what: str, work: Awaitable[object]) -> None:
            await work
            ends.append((what, clock.now() - begun))

        one = asyncio.ensure_future(note("one", runner.step(Batch(1, (chunk([1, 2, 3]),), exports=exports))))
        await asyncio.sleep(0.001)
        data = memoryview(bytearray(4 * BLOCK_BYTES))
        writing = [
            asyncio.ensure_future(note(f"write {number}", runner.lay_down((), [(whole, data)]))) for number in (1, 2)
        ]
        await one
        two = asyncio.ensure_future(note("two", runner.step(Batch(2, (chunk([1, 2, 3]),)))))
        await asyncio.gather(*writing, two)
        step = 0.020
        expected = [("last layer", step * (1 - 1 / LAYERS)), ("one", step)]
        expected += [(f"write {number}", step + number * copied) for number in (1, 2)]
        expected += [("last layer", expected[-1][1] + step * (1 - 1 / LAYERS)), ("two", expected[-1][1] + step)]
        assert [what for what, _ in ends] == [what for what, _ in expected]
        assert [at for _, at in ends] == pytest.approx([at for _, at in expected], rel=1e-3)
        assert runner.rates.copied_bytes_per_second == pytest.approx(1e9 * LATENCY.copy)

    run(main())


@pytest.mark.parametrize(
    ("between", "worked", "begins"),
    [
        pytest.param(0.003, 0.002, 0.001, id="what the host did is made up for"),
        pytest.param(0.003, 0.004, 0.0, id="never more than has passed"),
        pytest.param(0.006, 0.002, 0.006, id="an engine that was idle began when it was asked"),
    ],
)
def test_the_work_of_the_host_between_two_steps_takes_no_time_of_the_gpu(
    between: float, worked: float, begins: float
) -> None:
    async def main() -> None:
        so_far, batch = [0.0], Batch(1, (chunk([1, 2, 3]),))
        clock, runner = LoopClock(0.0), await loaded(worked=lambda: so_far[0])
        await runner.step(batch)
        begun = clock.now()
        await asyncio.sleep(between)
        so_far[0] += worked
        await runner.step(batch)
        assert clock.now() - begun == pytest.approx(begins + 0.020)

    run(main())


def test_a_caller_that_is_cancelled_leaves_its_step_running() -> None:
    async def main() -> None:
        clock, runner = LoopClock(0.0), await loaded()
        begun = clock.now()
        with pytest.raises(TimeoutError):
            async with timeout(0.001):
                await runner.step(Batch(1, (chunk([1, 2, 3]),)))
        await runner.step(Batch(2, (chunk([1, 2, 3]),)))
        assert clock.now() - begun == pytest.approx(0.040)
        await runner.unload()
        await runner.close()

    run(main())
