import asyncio

import pytest

from livescale.services.worker.actor import InstanceSeconds
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.requests import AskRunning, Cancel, Replay, Running
from livescale.shared.messages.transfers import Inflow
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.subjects import ADMIT, CANCEL_WORK, LOAD, REPLAY, RUNNING
from tests.worker.fleet import CONTEXT, Fleet, fleet, undisturbed
from tests.worker.requests import random_prompt, submit


async def chain_of_two(made: Fleet) -> None:
    await made.load("w-2", made.node("w-1"))
    await made.load("w-1", made.me)
    await made.send("w-1", "w-2")
    made.feed("w-1")
    await made.whole("w-1", "w-2")


async def test_a_chain_loads_two_workers_and_both_give_the_same_right_tokens() -> None:
    async with fleet("w-1", "w-2") as made:
        await chain_of_two(made)
        await made.serve("w-1")
        await made.serve("w-2")
        expected = undisturbed(made, a=1, b=2)
        for worker in ("w-1", "w-2"):
            for name, seed in {"a": 1, "b": 2}.items():
                await made.admit(worker, submit(f"{name}-{worker}", random_prompt(seed, 40), max_tokens=24))
        for worker in ("w-1", "w-2"):
            assert await made.finished(f"a-{worker}") == expected["a"]
            assert await made.finished(f"b-{worker}") == expected["b"]
        await made.until(lambda: len(made.ended) == 4)
        assert made.reports["w-1"].paths == {"source": "sockets"}
        assert made.reports["w-2"].paths == {"w-1": "sockets"}
        assert {report.device for report in made.reports.values()} == {"cpu"}


async def test_a_serving_worker_feeds_a_new_one_while_it_serves() -> None:
    async with fleet("w-1", "w-2") as made:
        await made.serving("w-1")
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=24))
        await made.load("w-2", made.node("w-1"), plan="plan-2")
        await made.send("w-1", "w-2", plan="plan-2")
        await made.whole("w-2")
        await made.serve("w-2")
        await made.admit("w-2", submit("b", random_prompt(2, 40), max_tokens=24))
        expected = undisturbed(made, a=1, b=2)
        assert await made.finished("a") == expected["a"]
        assert await made.finished("b") == expected["b"]
        await made.until(lambda: made.reports["w-1"].flows_out == 0)
        # Parameters went over its link, and nothing of what it serves: that is measured, not unknown.
        assert made.reports["w-1"].traffic == []


async def test_a_stale_epoch_is_refused() -> None:
    async with fleet("w-1") as made:
        with pytest.raises(Refusal, match="epoch 3 is stale"):
            await made.bus.call(
                LOAD, made.command("w-1", Inflow(ticket=7, upstream=made.me), epoch=3), timeout=5, id="w-1"
            )


async def test_a_cancelled_request_ends_at_once_and_a_lost_frame_can_be_asked_for_again() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=200))
        await made.until(lambda: len(made.rows.get("a", [])) > 5)
        made.bus.publish(CANCEL_WORK, Cancel(request_id="a"), id="w-1")
        tokens = await made.finished("a")
        assert len(tokens) < 200
        assert made.rows["a"][-1].finish_reason == "cancelled"
        await made.until(lambda: made.reports["w-1"].load is not None and made.reports["w-1"].load.kv_blocks_used == 0)
        made.rows.clear()
        await made.bus.call(REPLAY, Replay(request_id="a", index=2, gateway="g"), timeout=5, id="w-1")
        await made.until(lambda: "a" in made.rows)
        assert made.rows["a"][0].token_ids == tokens[2:]
        with pytest.raises(Refusal, match="404"):
            await made.bus.call(REPLAY, Replay(request_id="zz", index=0, gateway="g"), timeout=5, id="w-1")


async def test_a_prompt_that_begins_as_one_before_it_is_not_computed_again_and_its_tokens_are_the_same() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        tokens = []
        for name in "ab":
            await made.admit("w-1", submit(name, random_prompt(1, 200), max_tokens=9))
            tokens.append(await made.finished(name))
        assert tokens[0] == tokens[1]
        assert [made.rows[name][-1].cached_tokens for name in "ab"] == [0, 192]


async def test_a_request_that_can_never_fit_is_refused_with_the_limit() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        with pytest.raises(Refusal, match=f"max_model_len is {CONTEXT}"):
            await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=CONTEXT))
        assert ADMIT.pattern == "worker.{id}.admit"


async def test_a_request_ends_by_the_time_it_had_left_whatever_the_senders_clock_said() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=200, timeout_s=0.05))
        assert len(await made.finished("a")) < 200
        assert made.rows["a"][-1].finish_reason == "deadline"


async def test_a_router_can_ask_what_runs_and_admit_it_once_more() -> None:
    async with fleet("w-1", max_num_seqs=1) as made:
        await made.serving("w-1")
        for name in ("a", "waits"):
            await made.admit("w-1", submit(name, random_prompt(1, 40), max_tokens=100))
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=100))
        answer = await made.bus.call(RUNNING, AskRunning(), timeout=5, id="w-1")
        assert sorted(one.request_id for one in answer.requests) == ["a", "waits"]
        assert answer.requests[1] == Running(request_id="waits", gateway="g", tokens=40)
        assert 40 <= answer.requests[0].tokens < 140
        # What has no token yet has nothing to send again, and is here all the same.
        await made.bus.call(REPLAY, Replay(request_id="waits", index=0, gateway="g"), timeout=5, id="w-1")
        assert len(await made.finished("a")) == 100
        assert len(await made.finished("waits")) == 100
        await made.until(lambda: made.ended == ["a", "waits"])
        assert answer.ended == []
        answer = await made.bus.call(RUNNING, AskRunning(), timeout=5, id="w-1")
        assert (answer.requests, answer.ended) == ([], ["a", "waits"])


async def test_what_ended_while_the_bus_was_away_is_told_when_it_is_back() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=24))
        await made.until(lambda: "a" in made.rows)
        made.broker.down()
        await asyncio.sleep(0.5)  # time in which it would be told to nobody
        assert made.ended == []
        made.broker.up()
        await made.until(lambda: made.ended == ["a"])
        await made.bus.call(REPLAY, Replay(request_id="a", index=0, gateway="g"), timeout=5, id="w-1")
        await made.until(lambda: any(len(row.token_ids) == 24 for row in made.rows["a"]))


async def test_a_spare_worker_says_what_it_is_and_nothing_of_a_model() -> None:
    async with fleet("w-1") as made:
        report = made.reports["w-1"]
        assert (report.id, report.state, report.device, report.engine) == ("w-1", "spare", "cpu", "torch")
        assert (report.model, report.holding, report.load, report.flows_out) == (None, None, None, 0)


async def test_a_serving_worker_says_what_it_holds_and_what_there_is_room_for() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        await made.until(lambda: made.state("w-1") == "serving")
        report, blocks = made.reports["w-1"], len(made.manifest.blocks)
        assert report.holding is not None
        assert (report.holding.ready, report.holding.total) == (list(range(blocks)), blocks)
        assert (report.version, report.instance, report.rank) == (made.manifest.version, "m-w-1", 0)
        assert report.load is not None
        assert report.load.running_requests == 0
        assert report.kv_blocks > 0
        assert (report.helping, report.live_layers, report.pipeline) == ([], 0, None)


def test_time_counts_for_what_the_worker_was_used_for_meanwhile() -> None:
    telemetry = Telemetry("worker", "worker-0")
    seconds = InstanceSeconds(telemetry)
    seconds.note(None, None, 10.0)
    seconds.note("m", "prefill", 11.0)
    seconds.note("m", "prefill", 13.0)
    seconds.note("m", "decode", 14.5)
    seconds.note(None, None, 20.0)
    seconds.note("m", "prefill", 50.0)
    told = telemetry.exposition()
    assert 'livescale_worker_instance_seconds_total{model_name="m",role="prefill"} 3.5' in told
    assert 'livescale_worker_instance_seconds_total{model_name="m",role="decode"} 5.5' in told
