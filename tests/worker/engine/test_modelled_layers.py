"""Layers of a modelled engine run one by one, and what moves where a request changes hands between them."""

import pytest
from msgspec.structs import replace

from livescale.services.worker.engine.contract import LayerwiseRun, Runner
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.engine.modelled_steps import STATE_BYTES
from livescale.services.worker.scheduling.batch import (
    NO_BYTES,
    Batch,
    KvCopy,
    KvImport,
    LayerEntry,
    PrefixUse,
    ScheduledChunk,
    TokenSampling,
    activation_bytes,
    kv_bytes,
)
from livescale.shared.messages.requests import Sampling
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
)
from tests.worker.engine.modelled_engine import alone, chunk
from tests.worker.requests import random_prompt, submit


@pytest.mark.parametrize("layers", range(1, LAYERS + 1))
def test_a_request_that_changes_hands_between_layers_goes_on_with_the_same_tokens(layers: int) -> None:
    """What moves has the size of activations and KV; without either the tokens would be others."""

    async def hand_over(here: Runner, there: Runner, prompt: list[int], *, with_kv: bool = True) -> list[int]:
        started = LayerwiseRun(slab(prompt))
        for _ in range(layers):
            await here.run_layer([started])
        blocks = range(2, 2 + -(-len(prompt) // BLOCK_TOKENS))
        kv = await here.export_kv(blocks, layers)
        assert isinstance(kv, memoryview)
        assert len(started.activation) == activation_bytes(manifest(), len(prompt))
        assert kv.nbytes == kv_bytes(manifest(), len(prompt), layers, BLOCK_TOKENS)
        entry = LayerEntry(started.done, len(prompt), memoryview(bytearray(started.activation)))
        moved = [
            ScheduledChunk("a", one.tokens, one.start, range(40, 60), False, one.sampling, entry)
            for one in slab(prompt)
        ]
        [first] = (await there.step(Batch(1, tuple(moved)))).tokens
        came = range(40, 40 + len(blocks)) if with_kv else range(10, 10 + len(blocks))
        again = ScheduledChunk("a", (first,), len(prompt), range(40, 60), True, TokenSampling(Sampling(), 1))
        zeros = memoryview(bytearray(kv.nbytes))
        imports = (KvImport("a", came, layers, kv),) if with_kv else (KvImport("a", range(40, 52), layers, zeros),)
        [second] = (await there.step(Batch(2, (again,), imports=imports))).tokens
        return [first, second]

    async def main() -> None:
        prompt = random_prompt(3, 190, VOCABULARY)
        expected = await alone(submit("a", prompt, max_tokens=2))
        here, there = await loaded(), await loaded()
        assert await hand_over(here, there, prompt) == expected
        assert await hand_over(here, there, prompt, with_kv=False) != expected

    run(main())


def test_a_rank_that_is_led_runs_a_stage_whose_activation_only_the_first_has() -> None:
    async def main() -> None:
        led = await loaded()
        await led.load(replace(manifest(), shard=1, shards=2), 512)
        for index in range(LAYERS + 2):
            await led.add_block(index, NO_BYTES)
        prompt = random_prompt(3, 190, VOCABULARY)
        passed = await led.run_blocks(range(2, LAYERS + 2), slab(prompt), NO_BYTES)
        assert passed.chosen.tokens == await alone(submit("a", prompt, max_tokens=1))

    run(main())


def test_a_rank_that_is_led_runs_layers_without_room_for_activations() -> None:
    async def main() -> None:
        led = await loaded()
        await led.load(replace(manifest(), shard=1, shards=2), 512)
        for index in range(LAYERS + 2):
            await led.add_block(index, NO_BYTES)
        pieces = slab(random_prompt(3, 190, VOCABULARY))
        started = LayerwiseRun(pieces)
        for _ in range(LAYERS):
            await led.run_layer([started])
        assert len(started.activation) == 190 * STATE_BYTES
        again = ScheduledChunk("a", pieces[1].tokens[-1:], 189, pieces[1].blocks, True, TokenSampling(Sampling(), 1))
        [token] = (await led.step(Batch(1, (again,)))).tokens
        assert token == (await alone(submit("a", random_prompt(3, 190, VOCABULARY), max_tokens=1)))[0]

    run(main())


def slab(prompt: list[int]) -> tuple[ScheduledChunk, ...]:
    """In two chunks, of which the second draws."""
    first = ScheduledChunk("a", tuple(prompt[:128]), 0, range(2, 16), False)
    return first, ScheduledChunk("a", tuple(prompt[128:]), 128, range(2, 16), False, TokenSampling(Sampling(), 0))


def test_layers_one_by_one_take_what_a_step_takes_but_for_the_head() -> None:
    async def main() -> None:
        pieces, clock = slab(random_prompt(3, 190, VOCABULARY)), LoopClock(0.0)
        runner, started = await loaded(), LayerwiseRun(pieces)
        begun = clock.now()
        for _ in range(LAYERS):
            await runner.run_layer([started])
        one_by_one = clock.now() - begun
        await runner.step(Batch(1, pieces))
        whole = clock.now() - begun - one_by_one
        assert one_by_one == pytest.approx(0.98 * whole)

    run(main())


def test_rows_that_come_in_later_pay_for_the_layers_that_are_left() -> None:
    async def main() -> None:
        clock, runner, pieces = LoopClock(0.0), await loaded(), slab(random_prompt(3, 190, VOCABULARY))
        started = LayerwiseRun(pieces)
        for _ in range(LAYERS - 1):
            await runner.run_layer([started])
        entry = LayerEntry(LAYERS - 1, 190, started.activation)
        late = tuple(
            ScheduledChunk("a", one.tokens, one.start, one.blocks, False, one.sampling, entry) for one in pieces
        )
        begun = clock.now()
        await runner.step(Batch(1, late))
        whole = (10 + 19 + 1e-5 * 190**2) / 1e3
        assert clock.now() - begun == pytest.approx(whole * (0.02 + 0.978 / LAYERS))

    run(main())


def test_kv_that_was_copied_to_host_memory_and_back_is_gone_on_from() -> None:
    async def main() -> None:
        prompt = random_prompt(3, 140, VOCABULARY)
        [expected] = await alone(submit("a", prompt, max_tokens=1))
        runner = ModelledRunner(64 * BLOCK_BYTES, BLOCK_TOKENS, LATENCY, 1.0, LoopClock(0.0), 8 * BLOCK_BYTES)
        await runner.load(manifest(), 4_096)
        for block in manifest().blocks:
            await runner.add_block(block.index, NO_BYTES)
        await runner.step(Batch(1, (chunk(prompt[:128]),)))
        copies = KvCopy(range(2, 10), range(-8, 0)), KvCopy(range(-8, 0), range(40, 48))
        rest = ScheduledChunk("a", tuple(prompt[128:]), 128, range(40, 60), False, TokenSampling(Sampling(), 0))
        assert (await runner.step(Batch(2, (rest,), prefixes=PrefixUse(copies)))).tokens == [expected]

    run(main())
