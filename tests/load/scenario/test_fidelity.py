"""A simulation against live runs: what counts as within them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.load.scenario.fidelity import ObservedRun, Step, compare, edit_distance

OUT: Step = ("out", 3, "prefill")
IN: Step = ("in", 1, "idle")
LIVE = ObservedRun(
    steps=[OUT, IN], at=[2.0, 9.0], ttft=[0.1, 0.2, 0.3], tbt=[0.01, 0.03], used_seconds=50.0, ready=[0.2, 0.4]
)
RUNS = [LIVE, replace(LIVE, at=[2.1, 9.0], used_seconds=52.0)]
steps = st.lists(st.sampled_from([OUT, IN, ("out", 2, "decode")]), max_size=6)


@given(steps, steps, steps)
def test_edits_are_a_distance(one: list[Step], other: list[Step], third: list[Step]) -> None:
    assert (edit_distance(one, other) == 0) == (one == other)
    assert edit_distance(one, other) == edit_distance(other, one)
    assert edit_distance(one, third) <= edit_distance(one, other) + edit_distance(other, third)
    assert abs(len(one) - len(other)) <= edit_distance(one, other) <= max(len(one), len(other))


def verdicts(simulated: ObservedRun, live: list[ObservedRun] = RUNS) -> dict[str, bool]:
    return {row.name: row.holds for row in compare(simulated, live)}


def test_a_run_like_the_live_ones_holds_in_all() -> None:
    assert all(verdicts(LIVE).values())
    assert all(verdicts(replace(LIVE, at=[2.05, 9.04], used_seconds=51.0)).values())


@pytest.mark.parametrize(
    ("differs", "name"),
    [
        ({"steps": [OUT, IN, IN], "at": [2.0, 9.0, 12.0]}, "decisions"),
        ({"at": [2.0, 9.06]}, "decision times"),  # live runs agree on the second one: 50 ms
        ({"at": [2.2, 9.0]}, "decision times"),  # they are 100 ms apart on the first one
        ({"ttft": [0.1, 0.23, 0.3]}, "TTFT p50"),
        ({"ttft": [0.1, 0.2, 0.4]}, "TTFT p90"),
        ({"tbt": [0.01, 0.033]}, "mean TBT"),
        ({"used_seconds": 48.0}, "GPU seconds"),
        ({"used_seconds": 54.0}, "GPU seconds"),
        ({"ready": [0.2, 0.45]}, "blocks ready"),
        ({"ready": []}, "blocks ready"),
    ],
)
def test_what_differs_by_more_than_may_be_is_named(differs: dict[str, object], name: str) -> None:
    found = verdicts(replace(LIVE, **differs))
    assert [each for each, holds in found.items() if not holds] == [name]


def test_decisions_may_differ_as_much_as_those_of_live_runs() -> None:
    other = replace(LIVE, steps=[OUT, IN, OUT], at=[2.0, 9.0, 12.0])
    assert verdicts(LIVE, [LIVE, other])["decisions"]
    assert not verdicts(replace(LIVE, steps=[], at=[]), [LIVE, other])["decisions"]


def test_a_figure_that_no_run_has_holds() -> None:
    nothing = ObservedRun(steps=[], at=[], ttft=[], tbt=[], used_seconds=10.0, ready=[])
    assert all(verdicts(nothing, [nothing, nothing]).values())


def test_one_live_run_shows_no_spread() -> None:
    with pytest.raises(ValueError, match="1 live runs count"):
        compare(LIVE, [LIVE])


def test_runs_of_a_busy_or_stalled_machine_are_void() -> None:
    assert LIVE.void is None
    assert replace(LIVE, machine=0.69).void is None
    assert "71 % of the machine" in (replace(LIVE, machine=0.71).void or "")
    assert replace(LIVE, stalls=["the machine stood still for 1.0 s"]).void == "the machine stood still for 1.0 s"
