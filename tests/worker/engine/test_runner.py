"""The runner: a model loaded, served and given back, all on one thread beside the event loop."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from livescale.services.worker.engine.runner import EngineRunner
from livescale.services.worker.scheduling.batch import Batch, Chosen, KvCopy, KvPiece, KvSlice
from livescale.services.worker.scheduling.scheduler import Scheduler
from tests.worker.engine.models import Checkpointed, checkpointed
from tests.worker.requests import BLOCK_TOKENS, CONTEXT, limits, random_prompt, submit
from tests.worker.serving import serve

KV_BYTES = 4 << 20
HELD_UP_SECONDS = 0.5  # a step of this model takes some milliseconds


@pytest.fixture
async def runner() -> AsyncIterator[EngineRunner]:
    runner = EngineRunner(KV_BYTES, BLOCK_TOKENS)
    yield runner
    await runner.close()


async def _load(runner: EngineRunner, model: Checkpointed) -> int:
    blocks = await runner.load(model.manifest, CONTEXT)
    for index, block in enumerate(model.blocks):
        await runner.add_block(index, memoryview(block))
    return blocks


async def _serve(runner: EngineRunner, kv_blocks: int) -> list[int]:
    scheduler = Scheduler(limits(kv_blocks=kv_blocks))
    scheduler.add(submit("a", random_prompt(1, 200), max_tokens=8))
    tokens: list[int] = []
    while (batch := scheduler.next_batch()) is not None:
        for output in scheduler.complete(batch, await runner.step(batch), now=0.0):
            tokens += output.row.token_ids
    return tokens


async def test_one_model_after_the_other_is_served_from_the_same_memory(runner: EngineRunner) -> None:
    for name in ("llama2-untied", "qwen2-tied"):
        model = checkpointed(name)
        tokens = await _serve(runner, await _load(runner, model))
        alone = serve(model.engine(), [(0, submit("a", random_prompt(1, 200), max_tokens=8))])
        assert tokens == alone.tokens["a"]
        await runner.unload()


async def test_rates_are_measured_while_serving_and_unknown_for_the_next_model(runner: EngineRunner) -> None:
    blocks = await _load(runner, checkpointed("llama2-untied"))
    assert runner.rates.prefill_tokens_per_second is None
    await _serve(runner, blocks)
    assert runner.rates.prefill_tokens_per_second is not None
    assert runner.rates.decode_tokens_per_second is not None
    await runner.unload()
    await _load(runner, checkpointed("qwen2-tied"))
    assert runner.rates.decode_tokens_per_second is None


async def test_what_a_step_takes_has_the_way_to_its_thread_in_it(runner: EngineRunner) -> None:
    """Decodes wait for that as well; what rows of prompts add is what is above it."""
    scheduler = Scheduler(limits(kv_blocks=await _load(runner, checkpointed("llama2-untied"))))
    scheduler.add(submit("a", random_prompt(1, 20), max_tokens=2))
    batch = scheduler.next_batch()
    assert batch is not None
    way = asyncio.create_task(runner.call(lambda: time.sleep(HELD_UP_SECONDS)))
    await asyncio.sleep(0)
    await runner.step(batch)
    await way
    assert runner.rates.prefill_tokens_per_second is not None
    assert runner.rates.prefill_tokens_per_second < batch.prefill_rows / (0.9 * HELD_UP_SECONDS)


async def test_kv_is_laid_down_between_steps_once_each_and_steps_are_not_longer_for_it(
    runner: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(limits(kv_blocks=await _load(runner, checkpointed("llama2-untied"))))
    engine, ran, piece = runner._loaded(), list[str](), KvSlice(range(20, 21), 0, 16, range(1))
    step, lay_down = engine.step, engine.store.lay_down

    def noted_step(batch: Batch) -> Chosen:
        ran.append("step")
        return step(batch)

    def slow_copy(copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
        ran.append("copy")
        lay_down(copies, pieces)
        time.sleep(HELD_UP_SECONDS)

    async def lay_all_down() -> None:
        data = memoryview(bytearray(engine.store.export_slices([piece])))
        for _ in range(3):
            await runner.lay_down((), [(piece, data)])
        assert runner.rates.copied_bytes_per_second == pytest.approx(data.nbytes / HELD_UP_SECONDS, rel=0.1)

    monkeypatch.setattr(engine, "step", noted_step)
    monkeypatch.setattr(engine.store, "lay_down", slow_copy)
    scheduler.add(submit("a", random_prompt(1, 20), max_tokens=6))
    laying = None
    while (batch := scheduler.next_batch()) is not None:
        stepping = asyncio.create_task(runner.step(batch))
        await asyncio.sleep(0)
        laying = laying or asyncio.create_task(lay_all_down())
        scheduler.complete(batch, await stepping, now=0.0)
    assert laying is not None
    await laying
    assert ran == ["step", "copy", "step", "copy", "step", "copy", "step", "step", "step"]
    assert 0 < runner.rates.pace.seconds_alone < HELD_UP_SECONDS / 2


async def test_a_step_without_a_model_is_refused(runner: EngineRunner) -> None:
    with pytest.raises(RuntimeError, match="no model is loaded"):
        await runner.add_block(0, memoryview(bytearray(8)))


async def test_a_model_whose_kv_does_not_fit_is_refused() -> None:
    runner = EngineRunner(1_024, BLOCK_TOKENS)
    with pytest.raises(ValueError, match="--kv-bytes is 1024"):
        await runner.load(checkpointed("llama2-untied").manifest, CONTEXT)
    await runner.close()


async def test_calls_are_carried_out_in_order_on_one_thread(runner: EngineRunner) -> None:
    seen: list[tuple[int, int]] = []
    await asyncio.gather(*(runner.call(lambda n=n: seen.append((n, threading.get_ident()))) for n in range(20)))  # type: ignore[misc]
    assert [number for number, _ in seen] == list(range(20))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1


async def test_what_was_asked_for_is_done_though_nobody_waits_for_it_any_more(runner: EngineRunner) -> None:
    """Other ranks do it, too."""
    began, go_on, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        began.set()
        go_on.wait(60)
        done.append("first")

    first = asyncio.create_task(runner.call(work))
    queued = asyncio.create_task(runner.call(lambda: done.append("queued")))
    await asyncio.to_thread(began.wait, 60)
    for call in (first, queued):
        call.cancel()
    go_on.set()
    await runner.call(lambda: None)
    assert done == ["first", "queued"]


async def test_closing_twice_is_fine_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    runner = EngineRunner(KV_BYTES, BLOCK_TOKENS)
    await runner.close()
    await runner.close()
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert all(name.startswith("asyncio_") for name in left)  # the loop's own pool
