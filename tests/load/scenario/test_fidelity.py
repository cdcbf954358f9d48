"""A simulation against live runs: what counts as within them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.load.scenario.fidelity import (
    SAME_SECONDS,
    ObservedRun,
    Step,
    compare,
    edit_distance,
    shared_steps,
    time_between,
)

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
    return {row.name: row.holds for row in compare([simulated], live)}


def test_a_run_like_the_live_ones_holds_in_all() -> None:
    assert all(verdicts(LIVE).values())
    assert all(verdicts(replace(LIVE, at=[2.05, 9.04], used_seconds=51.0)).values())


@pytest.mark.parametrize(
    ("differs", "name"),
    [
        ({"steps": [OUT, IN, IN], "at": [2.0, 9.0, 12.0]}, "decisions"),
        ({"at": [2.0, 9.06]}, "decision times"),  # 80 ms from the second run, where live runs are 50 ms apart
        ({"at": [2.2, 9.0]}, "decision times"),
        ({"at": [2.2, 9.2]}, "decision times"),
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


def deciding(*steps: tuple[float, Step]) -> ObservedRun:
    return replace(LIVE, steps=[step for _, step in steps], at=[at for at, _ in steps])


def test_decisions_are_compared_with_those_that_were_made_at_about_their_time() -> None:
    """A run that decided once more in between does not make all later decisions late."""
    one = deciding((1.0, OUT), (2.0, IN), (11.0, OUT), (12.0, IN), (31.0, OUT), (32.0, IN))
    other = deciding((1.1, OUT), (2.1, IN), (21.0, OUT), (22.0, IN), (31.1, OUT), (32.1, IN))
    assert shared_steps(one, other) == [(0, 0), (1, 1), (4, 4), (5, 5)]
    assert time_between(one, other) == pytest.approx(0.1)
    assert time_between(one, deciding((5.0, OUT))) is None


decisions = st.lists(st.tuples(st.floats(0, 20), st.sampled_from([OUT, IN])), max_size=8).map(sorted)


@given(decisions, decisions)
def test_shared_decisions_are_equal_in_order_and_close(
    made: list[tuple[float, Step]], others: list[tuple[float, Step]]
) -> None:
    pairs = shared_steps(deciding(*made), deciding(*others))
    for numbers in zip(*pairs, strict=True):
        assert list(numbers) == sorted(set(numbers))
    for mine, theirs in pairs:
        assert made[mine][1] == others[theirs][1]
        assert abs(made[mine][0] - others[theirs][0]) <= SAME_SECONDS + 1e-9
    assert time_between(deciding(*made), deciding(*made)) == (0.0 if made else None)


def test_a_figure_that_no_run_has_holds() -> None:
    nothing = ObservedRun(steps=[], at=[], ttft=[], tbt=[], used_seconds=10.0, ready=[])
    assert all(verdicts(nothing, [nothing, nothing]).values())


UNLIKE = replace(LIVE, steps=[], at=[], ttft=[9.0], tbt=[9.0], used_seconds=500.0, ready=[9.0])


def test_one_simulation_at_the_edge_says_nothing_and_most_of_them_do() -> None:
    assert all(row.holds for row in compare([LIVE, UNLIKE, LIVE], RUNS))
    rows = compare([UNLIKE, LIVE, UNLIKE], RUNS)
    assert [row.name for row in rows if row.holds] == ["decision times"]  # those that it shares with none are no times
    assert [row.simulated for row in rows if row.name == "GPU seconds"] == ["500 (50 to 500)"]


def test_one_live_run_shows_no_spread() -> None:
    with pytest.raises(ValueError, match="1 live runs count"):
        compare([LIVE], [LIVE])


def test_runs_of_a_busy_or_stalled_machine_are_void() -> None:
    assert LIVE.void is None
    assert replace(LIVE, machine=0.69).void is None
    assert "71 % of the machine" in (replace(LIVE, machine=0.71).void or "")
    assert replace(LIVE, stalls=["the machine stood still for 1.0 s"]).void == "the machine stood still for 1.0 s"
