import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.links.fair_rates import fair_rates

INFINITE = float("inf")


@pytest.mark.parametrize(
    ("used_by", "capacity", "caps", "rates"),
    [
        ([(0,), (0,)], [1.0], [INFINITE, INFINITE], [0.5, 0.5]),
        ([(0,), (0,)], [1.0], [0.2, INFINITE], [0.2, 0.8]),
        ([(0,), (0, 1)], [1.0, 0.3], [INFINITE, INFINITE], [0.7, 0.3]),
        ([(0,), (0,)], [1.0], [0.0, INFINITE], [0.0, 1.0]),
        ([()], [], [INFINITE], [INFINITE]),
        ([(0, 1), (0,), (1,), (1,)], [1.0, 0.9], [INFINITE] * 4, [0.3, 0.7, 0.3, 0.3]),
    ],
)
def test_links_are_shared_fairly_and_what_one_cannot_use_is_for_the_others(
    used_by: list[tuple[int, ...]], capacity: list[float], caps: list[float], rates: list[float]
) -> None:
    assert fair_rates(used_by, capacity, caps) == pytest.approx(rates)


@given(st.data())
def test_every_flow_is_held_up_by_its_cap_or_by_a_full_link_on_which_none_has_more(data: st.DataObject) -> None:
    capacity = data.draw(st.lists(st.floats(0.1, 10), min_size=1, max_size=5))
    used_by = data.draw(st.lists(st.sets(st.integers(0, len(capacity) - 1), min_size=1), min_size=1, max_size=8))
    caps = [data.draw(st.sampled_from([0.0, 0.3, 2.0, INFINITE])) for _ in used_by]
    rates = fair_rates([sorted(links) for links in used_by], capacity, caps)
    load = [
        sum(rate for rate, links in zip(rates, used_by, strict=True) if link in links) for link in range(len(capacity))
    ]
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in range(len(capacity)))

    def is_held_up_by(flow: int, link: int) -> bool:
        others = [rates[other] for other, links in enumerate(used_by) if link in links]
        return load[link] >= capacity[link] * (1 - 1e-9) and rates[flow] >= max(others) * (1 - 1e-9)

    for flow, links in enumerate(used_by):
        assert rates[flow] == caps[flow] or any(is_held_up_by(flow, link) for link in links)
