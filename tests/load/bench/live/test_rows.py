"""`livescale bench live`: what it reads from logs, what it says of runs, and all of it with a small model."""

import pytest

from livescale.load.bench.live.rows import executed, predicted, second_half, whole_second_half
from livescale.load.bench.samples import BenchFailed
from tests.load.bench.live.runs import LIVE, OFF, ROWS, done, told


def test_the_second_half_is_told_with_its_idle_tail_as_well() -> None:
    # Both are idle from 10 s until the last block at 12 s.
    assert whole_second_half(LIVE) == pytest.approx(LIVE.layers_in(6.0, 10.0) / ROWS / 6.0)
    assert whole_second_half(LIVE) < second_half(LIVE)
    tail = told(done())["layers/s of both, idle tail included"]
    assert (tail.value, tail.against, tail.ok) == (whole_second_half(LIVE), whole_second_half(OFF), None)


def test_what_a_run_did_is_compared_with_what_the_policy_promises() -> None:
    assert executed(LIVE) == 1.5
    assert predicted(done(), LIVE) == pytest.approx(16 / 11)


def test_every_line_has_its_bar() -> None:
    lines = told(done())
    assert lines["first layer run"].value == 4.0
    assert lines["first token it took part in"].value == 7.0
    assert lines["layers/s of both"].ratio == 2.0
    assert (lines["finished while it loads"].value, lines["finished while it loads"].against) == (4, 3)
    assert lines["mean TTFT, zigzag / off"].ratio == 0.75
    assert lines["hand-off, 512 tokens"].ratio == 0.8
    missed = {case for case, line in lines.items() if line.ok is False}
    assert missed == {"finished while it loads"}
    assert lines["a block takes 6 layers, zigzag: mean TTFT"].ok is None


def test_live_scaling_that_ran_nothing_has_no_figures() -> None:
    with pytest.raises(BenchFailed, match="ran no layer before it had all parameters"):
        told(done(OFF))
