"""Whether a scale has to be live, from what the monitor saw and how long parameters load."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.planner.live import PrefillDemand, is_needed, longest_wait, read_demand
from livescale.services.worker.live.policy import OFF, LiveTask
from livescale.services.worker.live.simulation import simulate
from livescale.shared.messages.scaling import Decision
from tests.monitor.reports import Watched, load, queues, serving
from tests.monitor.reports import spare as spare_worker
from tests.planner.samples import decision

INPUTS = {
    "waiting_tokens": 900.0,
    "waiting_requests": 0.0,
    "arriving_tokens_per_second": 2000.0,
    "prefill_tokens_per_second": 1000.0,
    "instances": 2.0,
    "loading": 1.0,
}


def decided(rule: str = "prefill", inputs: Mapping[str, float | None] | None = None) -> Decision:
    return replace(decision(), rule=rule, inputs={**INPUTS, **(inputs or {})})


@pytest.mark.parametrize(
    ("demand", "joining", "wait"),
    [
        (
            PrefillDemand(waiting=500, arriving=0, rate=1000, serving=1),
            [5.0],
            0.5,
        ),  # what waits is done before it joins
        (
            PrefillDemand(waiting=4000, arriving=0, rate=1000, serving=1),
            [1.0],
            2.5,
        ),  # 1000 by then, the rest at twice the rate
        (PrefillDemand(waiting=0, arriving=500, rate=1000, serving=1), [5.0], 0.0),  # one is fast enough
        (
            PrefillDemand(waiting=0, arriving=2000, rate=1000, serving=1),
            [4.0],
            2.0,
        ),  # the last one to come finds 4000 before it
        (
            PrefillDemand(waiting=0, arriving=2000, rate=1000, serving=1),
            [2.0, 4.0],
            1.0,
        ),  # as fast as they come from 2 s on
        (PrefillDemand(waiting=0, arriving=100, rate=1000, serving=0), [3.0], 3.0),  # the first waits longest
        (PrefillDemand(waiting=0, arriving=0, rate=1000, serving=0), [3.0], 3.0),  # if there were any
    ],
)
def test_the_longest_wait(demand: PrefillDemand, joining: list[float], wait: float) -> None:
    assert longest_wait(demand, joining) == pytest.approx(wait)


def test_a_stop_that_breaks_the_slo_makes_a_scale_live_and_the_reason_has_the_figures() -> None:
    needed, reason = is_needed(decided(), [4.0], slo=1.0)
    assert needed
    assert reason == (
        "they are live: if they stopped the world for 4.00 s, a first token would take up to 2.45 s, more than the SLO "
        "of 1 s (900 prompt tokens wait, 2000/s come and by chance 2000/s, 1 instances take 1000/s each)"
    )


def test_a_stop_within_the_slo_is_kept() -> None:
    needed, reason = is_needed(decided(), [0.1], slo=1.0)
    assert not needed
    assert reason.startswith(
        "no target is live: although they stop the world for 0.10 s, a first token takes at most 0.50 s, within the SLO"
    )
    assert is_needed(decided(), [0.1], slo=0.4)[0]


@pytest.mark.parametrize("missing", INPUTS)
def test_where_something_is_not_known_of_the_load_a_scale_is_live(missing: str) -> None:
    needed, reason = is_needed(decided(inputs={missing: None}), [0.1], slo=1.0)
    assert needed
    assert "does not tell" in reason


def test_where_it_is_not_known_how_long_anything_takes_a_scale_is_live() -> None:
    assert is_needed(decided(), [], slo=1.0) == (
        True,
        "they are live, as it is not known how long they load: what links carry is not known",
    )
    assert is_needed(decided(inputs={"prefill_tokens_per_second": 0.0}), [0.1], slo=1.0)[0]
    assert is_needed(decided("decode"), [0.1], slo=1.0)[0]
    assert is_needed(decision(), [0.1], slo=1.0)[0]  # by hand


def test_chance_counts_the_more_the_longer_prompts_and_the_shorter_loads_are() -> None:
    demand = PrefillDemand(waiting=0, arriving=100, rate=1000, serving=1, prompt=100)
    assert demand.at_worst(4.0).arriving == 100 + 2 * 50  # 4 requests, with a deviation of 2 and so of 50 tokens/s
    assert demand.at_worst(400.0).arriving == 100 + 2 * 5
    assert demand.at_worst(0.0) == demand
    some, many = (is_needed(decided(inputs={"waiting_requests": count}), [0.4], slo=1.0) for count in (900.0, 1.0))
    assert (some[0], many[0]) == (False, True)


def test_the_monitor_tells_all_that_it_takes() -> None:
    watched = Watched()
    router = queues(5000)
    told = replace(router, queues=[replace(router.queues[0], arriving_tokens_per_second=2500.0)])
    watched.hear(
        0.0, told, serving("a", load()), serving("b", load(waiting_tokens=40), state="live"), spare_worker("c")
    )
    [verdict] = watched.policy.decide(0.0)
    assert verdict.action == "out"
    found = read_demand(replace(decision(), inputs=verdict.inputs))
    assert found == PrefillDemand(waiting=5040.0, arriving=2500.0, rate=1000.0, serving=1, prompt=5040.0)


@given(
    layers=st.integers(2, 12),
    load=st.floats(0.1, 10.0),
    rate=st.floats(0.2, 3.0),
    waiting=st.integers(0, 8),
)
def test_no_request_of_a_stop_that_is_played_through_waits_longer_than_was_said(
    layers: int, load: float, rate: float, waiting: int
) -> None:
    """Requests that come evenly, each one batch: a fluid but for the one before, which is not interrupted."""
    ready = [load * (layer + 1) for layer in range(layers)]
    whole, gap = ready[-1], layers / rate
    arrivals = [0.0] * waiting + [gap * (number + 1) for number in range(int(whole / gap))]
    tasks = [LiveTask(f"{number:03}", at) for number, at in enumerate(arrivals)]
    said = longest_wait(PrefillDemand(waiting=waiting * layers, arriving=rate, rate=1.0, serving=1), [whole])
    run = simulate(tasks, ready, OFF)
    assert all(run.ends[task.id] - task.arrival <= said + 2 * layers + 1e-9 for task in tasks)
