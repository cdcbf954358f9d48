"""A worker that was declared dead, or ran out of memory in a load: spare at once, nothing left running."""

import asyncio

import pytest
from msgspec.structs import replace

from livescale.services.worker.engine.runner import EngineRunner
from livescale.services.worker.instance.loading import Loading
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Stale
from livescale.shared.messages.transfers import Abort, Drain, Inflow, Serve
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.subjects import ABORT, DRAIN, LOAD, SERVE, STALE
from tests.worker.fleet import Fleet, fleet
from tests.worker.requests import random_prompt, submit


async def loaded(made: Fleet, plan: str, ticket: int) -> None:
    """Check that the worker loads and serves as if nothing had happened."""
    made.transfers.clear()
    await made.load("w-1", made.me, plan=plan, ticket=ticket)
    made.feed("w-1", ticket=ticket)
    await made.whole("w-1")
    await made.serve("w-1")
    await made.admit("w-1", submit(plan, random_prompt(1, 40), max_tokens=8))
    assert len(await made.finished(plan)) == 8


async def declare_dead(made: Fleet) -> None:
    made.reports.clear()
    made.bus.publish(STALE, Stale(id="w-1", epoch=1), id="w-1")
    await made.until(lambda: made.state("w-1") == "spare")
    assert (made.reports["w-1"].holding, made.reports["w-1"].load) == (None, None)


async def test_a_worker_declared_dead_in_mid_load_is_spare_and_loads_again_at_once() -> None:
    async with fleet("w-1") as made:
        await made.load("w-1", made.me)
        await made.until(lambda: made.state("w-1") == "loading")
        await declare_dead(made)
        await loaded(made, "plan-2", 8)


async def test_a_worker_declared_dead_while_it_serves_and_sends_is_spare_and_loads_again() -> None:
    async with fleet("w-1", "w-2") as made:
        await loaded(made, "plan-1", 7)
        await made.admit("w-1", submit("long", random_prompt(2, 40), max_tokens=200))
        await made.send("w-1", "w-2", "plan-9")  # to a receiver that never asks
        await made.until(lambda: made.reports["w-1"].flows_out == 1)
        await declare_dead(made)
        await made.until(lambda: made.reports["w-1"].flows_out == 0)
        told = len(made.rows.get("long", []))
        await loaded(made, "plan-2", 8)
        assert len(made.rows.get("long", [])) == told
        assert "long" not in made.ended


async def test_a_worker_declared_dead_while_it_drains_is_spare_and_loads_again() -> None:
    async with fleet("w-1") as made:
        await loaded(made, "plan-1", 7)
        await made.admit("w-1", submit("long", random_prompt(2, 40), max_tokens=200))
        await made.bus.call(DRAIN, Drain(instance="m-w-1", epoch=1), timeout=5, id="w-1")
        await declare_dead(made)
        await loaded(made, "plan-2", 8)
        assert not made.workers["w-1"].done()


async def test_out_of_memory_in_a_load_is_told_and_leaves_a_spare_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    add_block = EngineRunner.add_block

    async def exhausted(self: EngineRunner, index: int, buffer: memoryview) -> None:
        if index == 2:
            raise MemoryError
        await add_block(self, index, buffer)

    async with fleet("w-1") as made:
        monkeypatch.setattr(EngineRunner, "add_block", exhausted)
        await made.load("w-1", made.me)
        fed = made.feed("w-1")
        await made.until(lambda: any(one.state == "failed" for one in made.transfers))
        assert [one.error for one in made.transfers if one.state == "failed"] == ["MemoryError"]
        await made.until(lambda: made.state("w-1") == "spare")
        await asyncio.wait((fed,))
        monkeypatch.setattr(EngineRunner, "add_block", add_block)
        await loaded(made, "plan-2", 8)


async def test_draining_finishes_what_runs_refuses_what_is_new_and_ends_spare() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=24))
        await made.bus.call(DRAIN, Drain(instance="m-w-1", epoch=1), timeout=5, id="w-1")
        with pytest.raises(Refusal, match="takes no requests"):
            await made.admit("w-1", submit("b"))
        assert len(await made.finished("a")) == 24
        await made.until(lambda: made.state("w-1") == "spare")
        assert made.reports["w-1"].holding is None
        # And it can load again.
        made.transfers.clear()
        await made.load("w-1", made.me, plan="plan-2")
        made.feed("w-1")
        await made.whole("w-1")


async def test_what_is_drained_again_while_it_is_recalled_drains() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=24))
        first, again = (Drain(instance="m-w-1", epoch=1, plan_id=plan) for plan in ("plan-2", "plan-3"))
        await made.bus.call(DRAIN, first, timeout=5, id="w-1")
        recall = Serve(plan_id="plan-2", instance="m-w-1", epoch=1, recall=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(made.bus.call(SERVE, recall, timeout=5, id="w-1"))
            group.create_task(made.bus.call(DRAIN, again, timeout=5, id="w-1"))
        assert len(await made.finished("a")) == 24
        await made.until(lambda: made.state("w-1") == "spare")


async def test_an_aborted_load_leaves_a_spare_worker_and_nothing_behind() -> None:
    async with fleet("w-1") as made:
        await made.load("w-1", made.me)
        await made.until(lambda: made.state("w-1") == "loading")
        await made.bus.call(ABORT, Abort(plan_id="plan-0", reason="another plan"), timeout=5, id="w-1")
        assert made.state("w-1") == "loading"
        await made.bus.call(ABORT, Abort(plan_id="plan-1", reason="test"), timeout=5, id="w-1")
        await made.until(lambda: made.state("w-1") == "spare")


def held_up(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Have a worker let go of a load only once the second event is set; the first says that it has begun."""
    forget, begun, may_end = Loading.forget, asyncio.Event(), asyncio.Event()

    async def slow(self: Loading) -> None:
        begun.set()
        await may_end.wait()
        await forget(self)

    monkeypatch.setattr(Loading, "forget", slow)
    return begun, may_end


async def test_a_load_that_is_being_aborted_does_not_come_to_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = held_up(monkeypatch)
    async with fleet("w-1") as made:
        await made.load("w-1", made.me)
        made.feed("w-1")
        await made.whole("w-1")
        abort = Abort(plan_id="plan-1", reason="test")
        aborting = asyncio.create_task(made.bus.call(ABORT, abort, timeout=5, id="w-1"))
        await begun.wait()
        with pytest.raises(Refusal, match="409: cannot serve m-w-1: it is being given back"):
            await made.serve("w-1")
        may_end.set()
        await aborting
        await made.until(lambda: made.state("w-1") == "spare")


async def test_a_load_that_is_aborted_before_it_begins_leaves_no_flow_behind() -> None:
    async with fleet("w-1") as made:
        abort = Abort(plan_id="plan-1", reason="both came while the worker was stopped")
        await asyncio.gather(made.load("w-1", made.me), made.bus.call(ABORT, abort, timeout=5, id="w-1"))
        await made.until(lambda: made.reports["w-1"].state == "spare" and made.reports["w-1"].holding is None)
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if "BlockReceiver" in str(task.get_coro())]
        await loaded(made, "plan-2", 8)


async def test_a_worker_declared_dead_in_mid_abort_loads_once_the_aborted_flows_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet("w-1") as made:
        begun, may_end = held_up(monkeypatch)
        await made.load("w-1", made.me)
        abort = Abort(plan_id="plan-1", reason="test")
        aborting = asyncio.create_task(made.bus.call(ABORT, abort, timeout=5, id="w-1"))
        await begun.wait()
        await declare_dead(made)
        loading = asyncio.create_task(made.load("w-1", made.me, plan="plan-2", ticket=8))
        done, _ = await asyncio.wait([loading], timeout=0.2)
        assert not done
        may_end.set()
        await asyncio.gather(aborting, loading)
        made.feed("w-1", ticket=8)
        await made.whole("w-1")


async def test_a_model_that_does_not_fit_the_arena_is_refused() -> None:
    async with fleet("w-1") as made:
        command = made.command("w-1", Inflow(ticket=7, upstream=made.me))
        config = replace(command.manifest.config, vocab_size=2**20)
        blocks = [layout.block(0) for layout in block_layouts(config, command.manifest.dtype)]
        manifest = replace(command.manifest, config=config, blocks=blocks)
        with pytest.raises(Refusal, match="arena"):
            await made.bus.call(LOAD, replace(command, manifest=manifest), timeout=5, id="w-1")
        await made.load("w-1", made.me)
