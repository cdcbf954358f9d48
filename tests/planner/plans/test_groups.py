import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.planner.plans.groups import choose_lanes

RATES = st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=6).map(tuple)


@pytest.mark.parametrize(
    ("out", "into", "lanes"),
    [
        ((1.0,) * 4, (1.0,) * 4, 4),
        ((1.0,) * 2, (1.0,) * 4, 2),
        ((1.0,) * 4, (1.0,) * 2, 2),
        ((1.0,), (1.0,) * 4, 1),
        ((4.0,), (1.0,) * 4, 4),  # one host with a fast NIC
        ((0.25,) * 4, (1.0,), 4),  # disks
        ((0.9, 0.2), (1.0,), 1),  # an equal part for a slow one would hold up all
        ((float("inf"),), (2.0, 2.0), 2),  # a host's memory
    ],
)
def test_lanes_are_as_many_as_carry_most(out: tuple[float, ...], into: tuple[float, ...], lanes: int) -> None:
    assert choose_lanes(out, into) == lanes


@given(st.integers(1, 9), st.integers(1, 9))
def test_with_equal_rates_they_are_the_fewer_of_both(senders: int, receivers: int) -> None:
    assert choose_lanes((1.0,) * senders, (1.0,) * receivers) == min(senders, receivers)


@given(RATES, RATES)
def test_no_other_number_up_to_one_lane_an_end_carries_more(out: tuple[float, ...], into: tuple[float, ...]) -> None:
    def speed(lanes: int) -> float:
        ends = [*enumerate(out), *enumerate(into)]
        sides = [len(out)] * len(out) + [len(into)] * len(into)
        loads = [
            sum(lane % side == index for lane in range(lanes)) for (index, _), side in zip(ends, sides, strict=True)
        ]
        return lanes * min(rate / load for (_, rate), load in zip(ends, loads, strict=True) if load)

    assert speed(choose_lanes(out, into)) == pytest.approx(max(map(speed, range(1, max(len(out), len(into)) + 1))))
