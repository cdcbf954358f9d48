"""Messages that are disturbed by chance: the shares that are asked for are lost, late, or come twice."""

from random import Random

import pytest

from livescale.shared.simulation.disturbance import Disturbance, disturbed

MANY = 2_000
USUAL = 0.001


def fates(disturbance: Disturbance) -> list[list[float]]:
    delays = disturbed(lambda subject: (USUAL,), disturbance, Random(1))
    return [list(delays("any")) for _ in range(MANY)]


def test_undisturbed_messages_take_their_usual_time() -> None:
    assert fates(Disturbance()) == [[USUAL]] * MANY


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_shares_are_those_that_were_asked_for(share: float) -> None:
    found = fates(Disturbance(losses=share, delays=share, copies=share))
    came = [times for times in found if times]
    assert 1 - len(came) / MANY == pytest.approx(share, abs=0.05)
    assert sum(times[0] > USUAL for times in came) / len(came) == pytest.approx(share, abs=0.05)
    assert sum(len(times) == 2 for times in came) / len(came) == pytest.approx(share, abs=0.05)


def test_disturbances_add_up() -> None:
    assert Disturbance(losses=0.25) + Disturbance(losses=0.25, copies=0.5) == Disturbance(losses=0.5, copies=0.5)
