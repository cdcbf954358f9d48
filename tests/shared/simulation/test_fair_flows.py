"""Flows as a fluid: their shares are those of progressive filling at every moment, and only what changed is dealt."""

import heapq
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.shared.simulation.fair_flows import FairFlow, FairFlows, FairMessage
from livescale.shared.topology.paths import Resource

Start = tuple[float, str, str, int]  # when, from whom, to whom, and bytes


def hop(sender: str, receiver: str, rate: float = 10.0) -> tuple[Resource, ...]:
    return Resource("nic_out", sender, rate), Resource("nic_in", receiver, rate)


class Counted(FairFlows):
    """Flows, with the bytes that crossed each link."""

    def __init__(self) -> None:
        super().__init__()
        self.carried: list[tuple[Resource, float, float, float]] = []

    def passed(self, flow: FairFlow, start: float, end: float, size_bytes: float) -> None:
        self.carried += [(link, start, end, size_bytes) for link in flow.path]


def play(starts: Sequence[Start], flows: FairFlows | None = None) -> list[float]:
    """When each message is through."""
    fluid = FairFlows() if flows is None else flows
    opened, ends = dict[tuple[str, str], FairFlow](), [0.0] * len(starts)
    due = [(at, number) for number, (at, *_) in enumerate(starts)]
    heapq.heapify(due)
    while due or any(flow.messages for flow in opened.values()):
        first = min(opened.values(), key=lambda flow: flow.ends, default=None)
        if first is not None and first.ends <= (due[0][0] if due else float("inf")):
            now = first.ends
            fluid.end(first).through()
        else:
            now, number = heapq.heappop(due)
            _, sender, receiver, size = starts[number]
            flow = opened.setdefault((sender, receiver), fluid.open(hop(sender, receiver)))
            fluid.add(flow, FairMessage(size, lambda n=number, f=flow: ends.__setitem__(n, f.since)), now)  # type: ignore[misc]
        fluid.settle(now)
    return ends


def test_a_message_that_is_alone_has_the_rate_of_its_slowest_link() -> None:
    fluid = FairFlows()
    flow = fluid.open((*hop("a", "b"), Resource("uplink_out", "leaf", 2.0)))
    fluid.add(flow, FairMessage(10, lambda: None), 5.0)
    assert fluid.settle(5.0) == [flow]
    assert (flow.rate, flow.ends) == (2.0, 10.0)


def test_rates_change_where_a_flow_comes_or_goes_and_messages_end_by_arithmetic() -> None:
    # Alone for a second, then by half until the second is through, then alone again.
    assert play([(0.0, "a", "b", 30), (1.0, "a", "c", 10)]) == pytest.approx([4.0, 3.0])


def test_what_one_flow_cannot_use_is_for_the_others() -> None:
    ends = play([(0.0, "a", "b", 10), (0.0, "c", "b", 10), (0.0, "d", "b", 10), (0.0, "a", "e", 20)])
    assert ends == pytest.approx([3.0, 3.0, 3.0, 3.0])


def test_messages_of_one_flow_go_one_after_another() -> None:
    assert play([(0.0, "a", "b", 10), (0.0, "a", "b", 10), (0.5, "a", "b", 5)]) == pytest.approx([1.0, 2.0, 2.5])


def test_a_small_message_does_not_wait_behind_a_large_one_of_another_flow() -> None:
    assert play([(0.0, "a", "b", 1000), (1.0, "a", "c", 1)])[1] == pytest.approx(1.2)


def test_only_flows_that_meet_what_changed_get_another_rate() -> None:
    fluid = FairFlows()
    far, near, new = (fluid.open(hop(*ends)) for ends in (("x", "y"), ("a", "b"), ("a", "c")))
    for flow in (far, near):
        fluid.add(flow, FairMessage(100, lambda: None), 0.0)
    assert fluid.settle(0.0) == [far, near]
    fluid.add(new, FairMessage(100, lambda: None), 1.0)
    assert fluid.settle(1.0) == [near, new]
    assert (far.since, far.ends) == (0.0, 10.0)
    assert fluid.settle(2.0) == []


def test_what_is_given_up_leaves_its_share_to_the_others_and_its_turn_to_the_next() -> None:
    fluid = FairFlows()
    one, other = fluid.open(hop("a", "b")), fluid.open(hop("a", "c"))
    dropped, follows, kept = (FairMessage(20, lambda: None) for _ in range(3))
    for flow, message in ((one, dropped), (one, follows), (other, kept)):
        fluid.add(flow, message, 0.0)
    fluid.settle(0.0)
    fluid.drop(one, dropped, 1.0)
    assert fluid.settle(1.0) == []
    assert one.ends == 5.0  # 20 bytes at half the rate
    fluid.drop(one, follows, 2.0)
    assert fluid.settle(2.0) == [other]
    assert other.ends == 3.0  # 10 bytes had passed
    fluid.drop(one, follows, 2.5)  # it is gone: nothing happens
    assert not one.messages


starts_of = st.lists(
    st.tuples(st.floats(0, 3), st.sampled_from("abc"), st.sampled_from("def"), st.integers(1, 50)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=60)
@given(starts_of)
def test_no_link_carries_more_than_its_rate_nothing_is_lost_and_nobody_waits_for_an_idle_link(
    starts: list[Start],
) -> None:
    fluid = Counted()
    ends = play(starts, fluid)
    moments = sorted({at for _, start, end, _ in fluid.carried for at in (start, end)})
    for link in {one for one, *_ in fluid.carried}:
        mine = [(start, end, size) for one, start, end, size in fluid.carried if one == link]
        for start, end in pairwise(moments):
            load = sum(size / (e - s) for s, e, size in mine if s <= start and end <= e and e - s > 1e-9)
            assert load <= link.rate * (1 + 1e-6)
        total = sum(size for _, s, r, size in starts if link.owner in (s, r))
        assert sum(size for *_, size in mine) == pytest.approx(total)
    assert all(end >= at + size / 10.0 - 1e-9 for end, (at, _, _, size) in zip(ends, starts, strict=True))
    # Six flows at most meet at a card: nobody gets less than a share of what all have to send.
    assert max(ends) <= max(at for at, *_ in starts) + sum(size for *_, size in starts) / 10.0 + 1e-6
