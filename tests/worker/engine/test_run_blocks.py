"""A model cut into parts, each on an engine of its own: the same tokens, wherever it is cut."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.engine.contract import BlockMissing, StageResult
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.scheduling.batch import NO_BYTES, Batch, ScheduledChunk, TokenSampling, activation_bytes
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling, Submit
from livescale.shared.simulation.virtual_time import run
from tests.clocks import LoopClock
from tests.fuzz.effort import examples
from tests.worker.engine.made_up import BLOCK_BYTES, LATENCY, LAYERS, VOCABULARY, loaded, made_up_tokens, manifest
from tests.worker.engine.models import Checkpointed, checkpointed
from tests.worker.requests import BLOCK_TOKENS, limits, random_prompt, submit
from tests.worker.serving import serve

Part = Callable[[Sequence[ScheduledChunk], memoryview], Awaitable[StageResult]]
CUTS = st.sets(st.integers(1, LAYERS + 1), max_size=LAYERS + 1)


def requests(count: int) -> list[Submit]:
    return [
        submit(
            f"r{number}",
            random_prompt(number, (3, 40, 150, 290)[number % 4]),
            max_tokens=5,
            sampling=Sampling(temperature=0.8 * (number % 2), seed=number),
        )
        for number in range(count)
    ]


async def through(parts: Sequence[Part], asked: Sequence[Submit], *, kv_blocks: int = 128) -> dict[str, list[int]]:
    """One batch after the other, through all parts."""
    scheduler = Scheduler(limits(kv_blocks=kv_blocks))
    tokens: dict[str, list[int]] = {one.request_id: [] for one in asked}
    for request in asked:
        scheduler.add(request)
    while (batch := scheduler.next_batch()) is not None:
        passed = StageResult(NO_BYTES)
        for part in parts:
            passed = await part(batch.chunks, passed.activation)
        for output in scheduler.complete(batch, passed.chosen, now=0.0):
            tokens[output.row.request_id] += output.row.token_ids
    return tokens


def spans(cuts: set[int], blocks: int) -> list[range]:
    edges = [0, *sorted(cut for cut in cuts if cut < blocks), blocks]
    return [range(start, stop) for start, stop in pairwise(edges)]


def computing(model: Checkpointed, blocks: range) -> Part:
    """An engine that has these blocks, and the embedding where the head is made of it."""
    engine, last = model.empty_engine(), len(model.blocks)
    tied = {0} if blocks.stop == last and model.manifest.config.tie_word_embeddings else set()
    for index in tied | set(blocks):
        engine.add_block(index, memoryview(model.blocks[index]))

    async def part(chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        passed = engine.run_blocks(blocks, chunks, memoryview(bytearray(activation)))
        rows = sum(len(chunk.tokens) for chunk in chunks)
        assert len(passed.activation) in (0, activation_bytes(model.manifest, rows))
        return passed

    return part


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama2-untied", "qwen2-tied"])
def test_every_cut_gives_the_tokens_of_the_whole(name: str, dtype: DType) -> None:
    model, asked = checkpointed(name, dtype), requests(6)
    whole: TorchEngine = model.engine()
    expected = dict(serve(whole, [(0, one) for one in asked]).tokens)
    for cuts in ({1}, {2}, {3}, {1, 2, 3}):
        parts = [computing(model, blocks) for blocks in spans(cuts, len(model.blocks))]
        assert run(through(parts, asked)) == expected, cuts


def test_no_part_runs_without_its_blocks() -> None:
    model = checkpointed("llama2-untied")
    engine = model.empty_engine()
    engine.add_block(0, memoryview(model.blocks[0]))
    chunk = ScheduledChunk("a", (1, 2, 3), 0, range(4), False, TokenSampling(Sampling(), 0))
    with pytest.raises(BlockMissing, match="layer 0: block 1"):
        engine.run_blocks(range(2), (chunk,), NO_BYTES)
    assert engine.run_blocks(range(1), (chunk,), NO_BYTES).chosen.tokens == []


def modelled(runner: ModelledRunner, blocks: range) -> Part:
    async def part(chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        return await runner.run_blocks(blocks, chunks, activation)

    return part


@examples(20)
@given(CUTS)
def test_a_modelled_engine_in_parts_makes_the_same_tokens_in_the_same_time(cuts: set[int]) -> None:
    async def main() -> None:
        asked, clock = requests(5), LoopClock(0.0)
        parts = [modelled(await loaded(), blocks) for blocks in spans(cuts, LAYERS + 2)]
        begun = clock.now()
        tokens = await through(parts, asked)
        in_parts = clock.now() - begun
        assert tokens == {one.request_id: made_up_tokens("v1", VOCABULARY, one) for one in asked}
        whole = await loaded()
        begun = clock.now()

        async def step(chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
            return StageResult(NO_BYTES, await whole.step(Batch(1, tuple(chunks))))

        await through([step], asked)
        assert in_parts == pytest.approx(clock.now() - begun)

    run(main())


def test_modelled_tokens_are_wrong_where_the_kv_of_a_part_or_its_activation_is() -> None:
    async def main() -> None:
        asked = requests(1)
        right = {"r0": made_up_tokens("v1", VOCABULARY, asked[0])}

        def forgetful() -> Part:
            """Has another KV cache every time."""

            async def part(chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
                return await (await loaded()).run_blocks(range(2, LAYERS + 2), chunks, activation)

            return part

        def scrambled(runner: ModelledRunner) -> Part:
            async def part(chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
                other = memoryview(bytearray(reversed(activation)))
                return await runner.run_blocks(range(2, LAYERS + 2), chunks, other)

            return part

        for second in (forgetful(), scrambled(await loaded())):
            assert await through([modelled(await loaded(), range(2)), second], asked) != right
        second = modelled(await loaded(), range(2, LAYERS + 2))
        assert await through([modelled(await loaded(), range(2)), second], asked) == right

    run(main())


def test_a_modelled_part_needs_its_blocks_and_no_others() -> None:
    async def main() -> None:
        runner = ModelledRunner(8 * BLOCK_BYTES, BLOCK_TOKENS, LATENCY, 1.0, LoopClock(0.0))
        await runner.load(manifest(), 4_096)
        await runner.add_block(0, NO_BYTES)
        chunk = ScheduledChunk("a", (1, 2, 3), 0, range(4), False, TokenSampling(Sampling(), 0))
        assert (await runner.run_blocks(range(1), (chunk,), NO_BYTES)).chosen.tokens == []
        with pytest.raises(BlockMissing, match="block 1 "):
            await runner.run_blocks(range(2), (chunk,), NO_BYTES)

    run(main())
