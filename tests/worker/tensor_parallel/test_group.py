"""Real workers, two of which are one instance: tensor parallel, over a process group of gloo's."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import cycle

import pytest
from msgspec.structs import replace

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine import tensor_parallel
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.settings import MIB
from livescale.services.worker.tensor_parallel import follower
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.model_parallel import AskMeeting, RankStep
from livescale.shared.messages.transfers import Drain, Inflow, Serve
from livescale.shared.subjects import DEATH, DRAIN, LOAD, MEETING, RANK_STEP, SERVE
from livescale.shared.transfer.flow_end import FlowEnd, ModelCopy
from tests.checkpoints import tiny_checkpoint
from tests.worker.fleet import CHUNK_BYTES, CONTEXT, Fleet, fleet
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import serve

RANKS = ["w-0", "w-1"]
INSTANCE = "i-1"


async def load(made: Fleet, ranks: Sequence[str] = RANKS) -> None:
    each = len(made.manifest.blocks) // len(RANKS)
    for worker in ranks:
        rank = RANKS.index(worker)
        inflow = Inflow(ticket=7 + rank, upstream=made.me)
        command = made.command(worker, inflow)
        own = {"instance": INSTANCE, "rank": rank, "ranks": RANKS, "manifest": made.manifest.of_shard(rank)}
        await made.bus.call(LOAD, replace(command, **own), timeout=60, id=worker)
        part = ModelCopy("source", CHUNK_BYTES, made.memory[rank * each : (rank + 1) * each])
        made.tasks.create_task(made._feed(FlowEnd(part, 7 + rank, made.node(worker))))


async def served(made: Fleet) -> None:
    """Start two instances that both serve."""
    await load(made)
    await made.whole(*RANKS)
    for worker in RANKS:
        await made.bus.call(SERVE, Serve(plan_id="plan-1", instance=INSTANCE, epoch=1), timeout=60, id=worker)
    await made.until(lambda: all(made.state(worker) == "serving" for worker in RANKS))


async def spare(made: Fleet, *workers: str) -> None:
    await made.until(lambda: all(made.state(worker) == "spare" for worker in workers))


def alone() -> TorchEngine:
    """Start the same model on one worker."""
    checkpoint = open_checkpoint(tiny_checkpoint("qwen2"), "float32")
    blocks = [bytearray(layout.size_bytes) for layout in checkpoint.layouts]
    checksums = [checkpoint.read_block(index, memoryview(block)) for index, block in enumerate(blocks)]
    engine = TorchEngine(checkpoint.manifest(checksums), allocate_kv_memory(16 * MIB), 16, CONTEXT)
    for index, block in enumerate(blocks):
        engine.add_block(index, memoryview(block))
    return engine


async def test_two_workers_serve_one_model_and_the_first_of_them_takes_requests() -> None:
    prompts = {name: random_prompt(seed, 150) for seed, name in enumerate("abc")}
    expected = serve(alone(), [(0, submit(name, prompt, max_tokens=24)) for name, prompt in prompts.items()])
    async with fleet(*RANKS, shards=2) as made:
        await served(made)
        for name, prompt in prompts.items():
            await made.admit("w-0", submit(name, prompt, max_tokens=24))
        for name in prompts:
            assert await made.finished(name) == expected.tokens[name]
        with pytest.raises(Refusal, match="this worker serves no model"):
            await made.admit("w-1", submit("d", max_tokens=3))
        assert {made.reports[worker].rank for worker in RANKS} == {0, 1}
        held = [made.reports[worker].holding for worker in RANKS]
        assert [one and one.version for one in held] == [made.manifest.of_shard(rank).held_as for rank in (0, 1)]


async def test_an_instance_drains_whole_and_its_workers_can_be_another() -> None:
    async with fleet(*RANKS, shards=2) as made:
        await served(made)
        await made.admit("w-0", submit("a", random_prompt(1, 40), max_tokens=60))
        for worker in reversed(RANKS):
            await made.bus.call(DRAIN, Drain(instance=INSTANCE, epoch=1), timeout=60, id=worker)
        assert len(await made.finished("a")) == 60
        await spare(made, *RANKS)
        made.transfers.clear()
        await served(made)


async def test_what_is_lost_with_a_rank_goes_on_elsewhere_and_who_is_left_is_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet(*RANKS, shards=2) as made:
        await served(made)
        await made.admit("w-0", submit("a", random_prompt(1, 40), max_tokens=200))
        await made.until(lambda: "a" in made.rows)
        monkeypatch.setattr(tensor_parallel, "COLLECTIVE", timedelta(seconds=0.5))
        made.workers["w-1"].cancel()
        await made.until(lambda: made.lost == ["a"])
        await spare(made, "w-0")


async def test_a_rank_that_the_registry_gives_up_ends_an_idle_instance() -> None:
    async with fleet(*RANKS, shards=2) as made:
        await served(made)
        gone = LeaseChanged(service="worker", id="w-1", epoch=1, state="dead", reason="silent", at=1.0)
        made.bus.publish(DEATH, gone, service="worker", id="w-1")
        await spare(made, *RANKS)


async def test_a_rank_that_is_not_led_any_more_is_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "WATCH_SECONDS", 0.05)
    async with fleet(*RANKS, shards=2) as made:
        await served(made)
        await made.bus.call(DRAIN, Drain(instance=INSTANCE, epoch=1), timeout=60, id="w-0")
        await spare(made, *RANKS)
        with pytest.raises(Refusal, match=f"409: instance: {INSTANCE} is not led here"):
            await made.bus.call(MEETING, AskMeeting(instance=INSTANCE), timeout=60, id="w-0")


async def test_a_step_that_cannot_be_taken_ends_the_instance() -> None:
    async with fleet(*RANKS, shards=2) as made:
        await served(made)
        made.bus.publish(RANK_STEP, RankStep(instance=INSTANCE, step=1, batch=b"none"), id="w-1")
        await spare(made, *RANKS)  # the one that leads is told, though it has nothing to run


async def test_a_step_that_is_lost_ends_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(follower, "LATE_SECONDS", 0.2)
    async with fleet(*RANKS, shards=2) as made:
        await served(made)
        lost = RANK_STEP.pattern.format(id="w-1")
        made.broker.lose = lambda subject: subject == lost
        await made.admit("w-0", submit("a", max_tokens=3))
        await made.until(lambda: made.lost == ["a"])
        await spare(made, *RANKS)


async def test_steps_that_come_twice_or_in_another_order_are_run_once_and_in_order() -> None:
    async with fleet(*RANKS, shards=2) as made:
        await served(made)
        steps, delays = RANK_STEP.pattern.format(id="w-1"), cycle([(0.0, 0.03), (0.0, 0.001, 0.02), (0.01,)])
        made.broker.delays = lambda subject: next(delays) if subject == steps else (0.0,)
        request = submit("a", random_prompt(1, 40), max_tokens=60)
        await made.admit("w-0", request)
        assert await made.finished("a") == serve(alone(), [(0, request)]).tokens["a"]
        assert [made.state(worker) for worker in RANKS] == ["serving"] * 2


async def test_a_rank_without_a_leader_gives_up_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "MEET_SECONDS", 0.2)
    async with fleet(*RANKS, shards=2) as made:
        await load(made, ["w-1"])
        await made.until(lambda: any(one.state == "failed" for one in made.transfers))
        assert made.transfers[-1].error == f"w-0 did not say at which address the ranks of {INSTANCE} meet"
        await spare(made, "w-1")
