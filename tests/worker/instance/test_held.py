"""What a worker tells of the instance that it holds; parameters of one that has drained stay, and serve again without a
byte being sent."""

import asyncio

import pytest
from msgspec.structs import replace

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Stale
from livescale.shared.messages.transfers import Drain, Load, Serve
from livescale.shared.subjects import DRAIN, LOAD, SERVE, STALE
from tests.worker.fleet import Fleet, fleet, undisturbed
from tests.worker.requests import random_prompt, submit


async def test_an_instance_says_for_how_long_nobody_asked_it_anything() -> None:
    async with fleet("w-1") as made:
        await made.load("w-1", made.me)
        made.feed("w-1")
        await made.whole("w-1")
        await made.serve("w-1")
        await asyncio.sleep(0.2)  # the seconds that are told
        began = asyncio.get_running_loop().time()
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=4))
        await made.finished("a")
        [event] = [one for one in made.instances if one.what == "first_token"]
        assert 0.2 <= event.unasked_seconds < 0.2 + began
        assert [one.unasked_seconds for one in made.instances if one.what == "serving"] == [0.0]


async def drained(made: Fleet, worker: str = "w-1") -> None:
    """It served a request, and has become spare again."""
    await made.serving(worker)
    await made.admit(worker, submit("before", random_prompt(3, 40), max_tokens=4))
    await made.finished("before")
    await made.bus.call(DRAIN, Drain(instance=f"m-{worker}", epoch=1), timeout=5, id=worker)
    await made.until(lambda: made.state(worker) == "spare")
    made.transfers.clear()


def parked(made: Fleet, worker: str = "w-1") -> Load:
    return replace(made.command(worker, plan="plan-2"), instance="m-again", parked=True)


async def test_a_drained_worker_serves_the_same_tokens_again_with_no_byte_received() -> None:
    async with fleet("w-1") as made:
        await drained(made)
        assert made.reports["w-1"].parked == made.manifest.version
        await made.bus.call(LOAD, parked(made), timeout=5, id="w-1")
        await made.whole("w-1")
        [whole] = [one for one in made.transfers if one.state == "whole"]
        assert (whole.plan_id, whole.received_bytes, whole.shared_bytes) == ("plan-2", 0, 0)
        await made.bus.call(SERVE, Serve(plan_id="plan-2", instance="m-again", epoch=1), timeout=5, id="w-1")
        await made.admit("w-1", submit("a", random_prompt(7, 40), max_tokens=24))
        assert await made.finished("a") == undisturbed(made, a=7)["a"]
        assert made.reports["w-1"].parked is None


async def test_what_is_parked_can_be_sent_on() -> None:
    async with fleet("w-1", "w-2") as made:
        await drained(made)
        await made.bus.call(LOAD, parked(made), timeout=5, id="w-1")
        await made.whole("w-1")
        await made.load("w-2", made.node("w-1"), plan="plan-3", ticket=9)
        await made.send("w-1", "w-2", plan="plan-3", ticket=9)
        await made.whole("w-2")
        await made.serve("w-2")
        await made.admit("w-2", submit("a", random_prompt(7, 40), max_tokens=24))
        assert await made.finished("a") == undisturbed(made, a=7)["a"]


async def test_other_parameters_take_the_place_of_parked_ones() -> None:
    async with fleet("w-1") as made:
        await drained(made)
        await made.serving("w-1")  # with all of its bytes, as nobody counted on what was there
        assert made.reports["w-1"].parked is None
        await made.admit("w-1", submit("a", random_prompt(7, 40), max_tokens=24))
        assert await made.finished("a") == undisturbed(made, a=7)["a"]


@pytest.mark.parametrize("version", ["other", None])
async def test_a_load_that_counts_on_what_is_not_there_is_refused(version: str | None) -> None:
    async with fleet("w-1") as made:
        if version is not None:
            await drained(made)
        command = parked(made)
        wanted = replace(command, manifest=replace(command.manifest, version=version or command.manifest.version))
        with pytest.raises(Refusal, match="are here") as refused:
            await made.bus.call(LOAD, wanted, timeout=5, id="w-1")
        assert refused.value.code == 409
        assert made.state("w-1") == "spare"
        if version is not None:  # what is there stays
            await made.bus.call(LOAD, parked(made), timeout=5, id="w-1")
            await made.whole("w-1")


async def test_a_fenced_worker_counts_on_nothing_that_it_is_about_to_forget() -> None:
    async with fleet("w-1") as made:
        await drained(made)
        before = made.reports["w-1"]
        made.bus.publish(STALE, Stale(id="w-1", epoch=1), id="w-1")
        await made.until(lambda: made.reports["w-1"] is not before)
        assert made.reports["w-1"].parked is None, "the first that it says"


async def test_nothing_is_kept_where_the_setting_says_so() -> None:
    async with fleet("w-1", keep_parameters=False) as made:
        await drained(made)
        assert made.reports["w-1"].parked is None
        with pytest.raises(Refusal, match="none are here"):
            await made.bus.call(LOAD, parked(made), timeout=5, id="w-1")
