"""Requests change hands at every number of layers, and their tokens stay the same."""

import pytest

from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling
from livescale.shared.subjects import INSTANCE
from tests.worker.live.live_workers import TARGET, live_workers
from tests.worker.requests import random_prompt, submit


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_request_goes_on_at_a_source_with_the_same_bits_whatever_was_done_of_it(dtype: DType) -> None:
    async with live_workers(dtype=dtype) as live:
        requests = []
        for layers in range(1, live.layers + 1):
            sampling = Sampling(temperature=0.9 if layers % 2 else 0.0, seed=layers)
            request = submit(f"r{layers}", random_prompt(layers, 130 + layers), max_tokens=24, sampling=sampling)
            requests.append(request)
            await live.give_layers(layers)
            ran, pulled = live.count(TARGET, "live_layers"), live.count("s", "pulled_layers")
            await live.fleet.admit(TARGET, request)
            await live.ran(ran + layers)
            await live.help("s")
            await live.finish(request)
            assert live.count("s", "pulled_layers") == pulled + layers
            await live.help("s", targets=())
        expected = live.undisturbed(*requests)
        assert {one.request_id: await live.fleet.finished(one.request_id) for one in requests} == expected
        assert live.count("s", "lost_kv") == 0
        assert [one.layers for one in live.fleet.moved] == list(range(1, live.layers + 1))
        await live.fleet.until(lambda: live.fleet.reports[TARGET].handed_over == {"s": live.layers})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_target_that_is_whole_goes_on_with_what_it_has_begun(dtype: DType) -> None:
    async with live_workers(dtype=dtype) as live:
        requests = [submit(f"r{n}", random_prompt(n, 100 + n), max_tokens=12) for n in range(3)]
        for layers, request in enumerate(requests, start=1):
            await live.give_layers(layers)
            await live.fleet.admit(TARGET, request)
            await live.ran(sum(range(layers + 1)) + (layers - 1) * layers // 2)
        await live.give_all()
        await live.serve()
        expected = live.undisturbed(*requests)
        assert {one.request_id: await live.fleet.finished(one.request_id) for one in requests} == expected
        assert live.fleet.state(TARGET) == "serving"


async def test_a_target_tells_when_it_has_run_its_first_layer_and_only_then() -> None:
    async with live_workers() as live:
        events = await live.fleet.bus.subscribe(INSTANCE)
        await live.give_layers(2)
        await live.fleet.admit(TARGET, submit("a", random_prompt(1, 150), max_tokens=8))
        await live.ran(2)
        await live.give_all()
        await live.serve()
        await live.fleet.finished("a")
        told = []
        async for received in events:
            told.append(received.message)
            if len(told) == 3:
                break
        await events.close()
    assert sorted(one.what for one in told) == ["first_layer", "first_token", "serving"]
    assert (told[0].what, told[0].worker, told[0].plan_id, told[0].instance) == ("first_layer", TARGET, "live", "m-t")


async def test_a_source_that_waits_gets_a_new_request_whole() -> None:
    async with live_workers() as live:
        await live.give(1)
        await live.help("s")  # before the first layer is there
        await live.give_layers(1)
        request = submit("a", random_prompt(1, 150), max_tokens=8)
        await live.fleet.admit(TARGET, request)
        assert await live.fleet.finished("a") == live.undisturbed(request)["a"]
        assert (live.count("s", "pulled_tasks"), live.count("s", "pulled_layers")) == (1, 0)
        assert [(one.worker, one.previous, one.request_ids) for one in live.fleet.moved] == [("s", TARGET, ["a"])]
        await live.fleet.until(lambda: live.fleet.ended == ["a"])


async def test_a_resumed_request_changes_hands_with_its_tokens() -> None:
    async with live_workers() as live:
        whole = submit("whole", random_prompt(3, 140), max_tokens=24)
        tokens = live.undisturbed(whole)["whole"]
        await live.give_layers(2)
        await live.fleet.admit(TARGET, submit("again", whole.prompt, generated=tokens[:10], max_tokens=24))
        await live.ran(2)
        await live.help("s")
        await live.finish(submit("again"))
        rows = live.fleet.rows["again"]
        assert rows[0].index == 10
        assert [token for row in rows for token in row.token_ids] == tokens[10:]
