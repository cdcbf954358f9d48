"""Instances of two workers that hold a model between them serve it before any of them is whole."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from livescale.services.worker.engine import tensor_parallel
from livescale.shared.messages.model_parallel import PipelineOver
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Cancel
from livescale.shared.subjects import CANCEL_WORK, PIPELINE_OVER
from tests.worker.requests import NEVER
from tests.worker.tensor_parallel.ranked_pipeline import PAIR, THREE, Cut, ranked_pipeline, team
from tests.worker.tensor_parallel.ranked_workers import wanted

LONG = 60


@pytest.mark.parametrize(
    ("cut", "dtype"),
    [
        (PAIR, "float32"),
        (THREE, "bfloat16"),
        pytest.param((("a", 1), ("b", 3), ("a", 4), ("b", 5)), "bfloat16", marks=pytest.mark.slow),
    ],
)
async def test_it_makes_the_tokens_of_one_instance_and_then_each_goes_on_with_its_part(cut: Cut, dtype: DType) -> None:
    before, through = [wanted(number) for number in range(3)], [wanted(number, LONG) for number in range(3, 7)]
    async with ranked_pipeline(cut, dtype) as made:
        expected = await made.ranked.undisturbed(*before, *through)
        for request in before:
            await made.ranked.fleet.admit("a-0", request)
        assert await made.ranked.finished(*before) == {one.request_id: expected[one.request_id] for one in before}
        assert made.count("steps") >= 12
        assert all(made.ranked.count(f"{name}-0", "pipeline_bytes") > 0 for name in made.names[1:])
        for name in made.names:
            await made.finish(name, 0, 1)
        await made.begun(*through)
        await made.serve()
        assert await made.ranked.finished(*through) == {one.request_id: expected[one.request_id] for one in through}
        assert made.count("filled_tokens") > 0
        assert made.count("broken") == made.count("moved_tokens") == 0
        assert made.ranked.fleet.lost == []


async def test_an_instance_one_rank_of_which_is_late_computes_nothing_beside_the_steps() -> None:
    requests = [wanted(number, LONG) for number in range(4)]
    async with ranked_pipeline() as made:
        expected = await made.ranked.undisturbed(*requests)
        await made.finish("a", 0, 1)
        await made.finish("b", 0)
        await made.begun(*requests)
        await made.ranked.serve(team("a"))
        assert await made.ranked.finished(*requests) == expected
        assert made.ranked.count("b-0", "pipeline_filled_tokens") == 0
        assert made.ranked.fleet.state("b-0") == made.ranked.fleet.state("b-1") == "loading"


@pytest.mark.parametrize(
    "victim", ["a-0", *(pytest.param(one, marks=pytest.mark.slow) for one in ("a-1", "b-0", "b-1"))]
)
async def test_whichever_rank_dies_its_requests_go_on_and_the_other_instance_loads_on(
    victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [wanted(number, LONG) for number in range(4)]
    gone, left = victim[0], "b" if victim[0] == "a" else "a"
    async with ranked_pipeline() as made:
        expected = await made.ranked.undisturbed(*requests)
        await made.begun(*requests)
        other = next(one for one in team(gone) if one != victim)
        with monkeypatch.context() as patch:
            patch.setattr(tensor_parallel, "COLLECTIVE", timedelta(seconds=2))
            made.kill(victim)
            await made.ranked.fleet.until(lambda: made.ranked.fleet.state(other) == "spare")
        if victim == "a-0":
            made.ranked.fleet.lost += [one.request_id for one in requests]  # the router knows by its lease
        await made.goes_on(expected, *requests)
        assert made.ranked.fleet.state(f"{left}-0") == "loading"
        await made.finish(left, 0, 1)
        await made.ranked.serve(team(left))
        again = replace(requests[0], request_id="again")
        await made.ranked.fleet.admit(f"{left}-0", again)
        assert (await made.ranked.finished(again))["again"] == expected[requests[0].request_id]


@pytest.mark.slow
async def test_a_planner_may_end_it_and_form_it_again_in_mid_step() -> None:
    """What was told to the others is run by all: no rank waits for one that was told to stop."""
    requests = [wanted(number, LONG) for number in range(4)]
    async with ranked_pipeline() as made:
        expected = await made.ranked.undisturbed(*requests)
        await made.begun(*requests)
        for name in made.names:
            over = PipelineOver(pipeline="p", reason="the planner says so")
            made.ranked.fleet.bus.publish(PIPELINE_OVER, over, id=f"{name}-0")
        await made.goes_on(expected, *requests)
        await made.ranked.fleet.until(lambda: all(made.ranked.fleet.reports[f"{n}-0"].pipeline is None for n in "ab"))
        await made.form()
        again = replace(requests[0], request_id="again")
        await made.ranked.fleet.admit("a-0", again)
        assert (await made.ranked.finished(again))["again"] == expected[requests[0].request_id]
        assert made.ranked.fleet.state("a-0") == "live"


async def test_a_member_that_leaves_or_is_late_ends_at_once_and_disturbs_no_other() -> None:
    stays, leaves = wanted(1, LONG), wanted(2, 100)
    async with ranked_pipeline() as made:
        expected = await made.ranked.undisturbed(stays)
        await made.begun(stays, leaves)
        made.ranked.fleet.bus.publish(CANCEL_WORK, Cancel(request_id=leaves.request_id), id="a-0")
        await made.ranked.fleet.admit("a-0", replace(wanted(3), deadline=1.0))
        assert await made.ranked.finished(stays) == expected
        ended = {id: made.ranked.fleet.rows[id][-1].finish_reason for id in (leaves.request_id, "r3")}
        assert ended == {leaves.request_id: "cancelled", "r3": "deadline"}
        assert stays.deadline == NEVER
