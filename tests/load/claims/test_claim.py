"""What holds, what fails, and what never counts as holding."""

import pytest

from livescale.load.claims.claim import (
    Band,
    Claim,
    Exact,
    Figure,
    Measured,
    Order,
    Verdict,
    around,
    judge,
    one,
    several,
)
from tests.load.claims.claims import made_up


@pytest.mark.parametrize(
    ("bound", "measured", "miss"),
    [
        (Exact((12.8,), "s", 0.01), one(12.805), None),
        (Exact((12.8,), "s", 0.01), one(12.82), "12.82, and not 12.8"),
        (Exact((1, 2)), several(("a", 1), ("b", 3)), "b: 3, and not 2"),
        (Exact((1.0,)), one(float("nan")), "nan, and not 1"),
        (Band("1", 0.9, 1.1, "s"), one(1.1), None),
        (Band("1", 0.9, 1.1, "s"), one(1.2), "1.2, which is not within 0.9 to 1.1 s"),
        (around(2.0, "s", 0.1), one(1.79), "1.79, which is not within 1.8 to 2.2 s"),
        (Order("a < b"), several(("a", 1), ("b", 2)), None),
        (Order("a < b"), several(("a", 2), ("b", 2)), "a: 2 is not below b: 2"),
        (Order("a < b", slack=1.05), several(("a", 2.1), ("b", 2)), None),
        (Order("a < b", slack=1.05), several(("a", 2.11), ("b", 2)), "a: 2.11 is not at most 1.05 times b: 2"),
    ],
)
def test_a_number_is_held_against_its_bound(bound: Exact | Band | Order, measured: Measured, miss: str | None) -> None:
    assert list(bound.misses(measured)) == ([] if miss is None else [miss])


def test_it_has_to_hold_in_every_row() -> None:
    rows = ((Figure("a", 1.0), Figure("b", 2.0)), (Figure("a", 3.0), Figure("b", 2.0)))
    assert list(Order("a < b").misses(Measured(rows=rows))) == ["a: 3 is not below b: 2"]


@pytest.mark.parametrize("rows", [(), ((),), ((Figure("a", 1.0),), ())])
def test_nothing_is_no_measurement(rows: tuple[tuple[Figure, ...], ...]) -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Measured(rows=rows)


def test_verdicts() -> None:
    assert judge(made_up(), one(1.0), {}).verdict is Verdict.HOLDS
    assert judge(made_up(calibrated="fitted"), one(1.0), {}).verdict is Verdict.CALIBRATED
    assert judge(made_up(stand_in="not the trace"), one(1.0), {}).verdict is Verdict.STAND_IN
    for claim in (made_up(), made_up(calibrated="fitted"), made_up(stand_in="not the trace")):
        assert judge(claim, one(2.0), {}).verdict is Verdict.FAILS


def test_a_failure_is_told_with_its_cause_and_counts_as_reviewed_only_with_one() -> None:
    unknown = judge(made_up(), one(2.0), {"other": "x"})
    assert unknown.reason == "2, which is not within 0.9 to 1.1 s. No cause is on the reviewed list."
    known = judge(made_up(), one(2.0), {"made-up": "It is told nowhere."})
    assert known.reason == "2, which is not within 0.9 to 1.1 s. It is told nowhere."
    assert (unknown.reviewed, known.reviewed) == (False, True)


def test_a_claim_without_a_measure_says_why() -> None:
    with pytest.raises(ValueError, match="why there is none"):
        Claim(id="a", source="b", says="c")
    with pytest.raises(ValueError, match="why there is none"):
        Claim(id="a", source="b", says="c", measure=lambda bench: one(1.0))
