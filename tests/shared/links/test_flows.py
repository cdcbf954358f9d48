"""Fair shares of links, played through: every flow books its pieces as soon as it may, and wakes late."""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.shared.links.calendars import LocalCalendar
from livescale.shared.links.flows import (
    LATE_SECONDS,
    MAX_PIECE_BYTES,
    MIN_PIECE_BYTES,
    PIECES_AHEAD,
    ShapedFlow,
    piece_bytes_for,
)
from livescale.shared.topology.paths import Resource

RATE = 100e6
PIECE = piece_bytes_for(RATE)
SECONDS = 30.0
TIMER_SECONDS = 0.002

Path = tuple[Resource, ...]


def link(name: str, rate: float = RATE) -> Resource:
    return Resource("nic_out" if name.endswith("out") else "nic_in", name, rate)


def hop(sender: str, receiver: str) -> Path:
    return (link(f"{sender}-out"), link(f"{receiver}-in"))


@dataclass
class Sender:
    """A flow with messages of these sizes in turn, always another one waiting."""

    flow: ShapedFlow
    sizes: Sequence[int]
    left: int = 0
    number: int = 0

    def book(self, now: float) -> tuple[int, float]:
        if not self.left:
            self.left = self.sizes[self.number % len(self.sizes)]
            self.number += 1
        piece, departs = self.flow.book(self.left, now)
        self.left -= piece
        return piece, departs


def play(paths: Sequence[Path], sizes: Sequence[Sequence[int]] = (), late: float = TIMER_SECONDS) -> list[float]:
    """Return the bytes a second of each flow. A task that waits for a departure wakes up to `late` seconds after it."""
    calendar, chance = LocalCalendar(), random.Random(1)
    messages = sizes or [[PIECE]] * len(paths)
    senders = [Sender(ShapedFlow(path, calendar, PIECE), each) for path, each in zip(paths, messages, strict=True)]
    awake = [(0.0, index) for index in range(len(paths)) for _ in range(PIECES_AHEAD)]
    moved: Counter[int] = Counter()
    while awake:
        now, index = heapq.heappop(awake)
        piece, departs = senders[index].book(now)
        if departs <= SECONDS:
            moved[index] += piece
            heapq.heappush(awake, (departs + chance.uniform(0, late), index))
    return [moved[index] / SECONDS for index in range(len(paths))]


def max_min(paths: Sequence[Path]) -> list[float]:
    """Compute the fair rates by progressive filling."""
    left = {link: link.rate for path in paths for link in path}
    rates = [0.0] * len(paths)
    growing = set(range(len(paths)))
    while growing:
        users = Counter(link for index in growing for link in paths[index])
        step = min(left[link] / count for link, count in users.items())
        for index in growing:
            rates[index] += step
        for link, count in users.items():
            left[link] -= step * count
        growing = {index for index in growing if all(left[link] > 1.0 for link in paths[index])}
    return rates


def test_a_flow_that_is_alone_gets_the_rate_of_its_slowest_link() -> None:
    assert play([(link("a-out"), link("b-in", RATE / 4))]) == pytest.approx([RATE / 4], rel=0.02)


@pytest.mark.parametrize("count", [2, 3, 7, 16])
def test_flows_out_of_one_card_or_into_one_get_equal_shares(count: int) -> None:
    out = [hop("a", str(index)) for index in range(count)]
    into = [hop(str(index), "a") for index in range(count)]
    assert play(out) == pytest.approx([RATE / count] * count, rel=0.02)
    assert play(into) == pytest.approx([RATE / count] * count, rel=0.02)


def test_the_two_directions_of_a_card_do_not_know_of_each_other() -> None:
    assert play([hop("a", "b"), hop("b", "a"), hop("c", "a")]) == pytest.approx([RATE, RATE / 2, RATE / 2], rel=0.02)


def test_what_a_flow_that_is_held_up_elsewhere_leaves_goes_to_the_others() -> None:
    crowded = [hop("a", "b"), hop("c", "b"), hop("d", "b"), hop("e", "b")]
    assert play([*crowded, hop("a", "f")]) == pytest.approx([RATE / 4] * 4 + [RATE * 3 / 4], rel=0.02)


@pytest.mark.parametrize("sizes", [[PIECE * 3 // 2], [2 * PIECE, 1000], [16 * PIECE], [PIECE + 1]])
def test_shares_do_not_depend_on_the_sizes_of_messages(sizes: list[int]) -> None:
    flows = [hop("a", "b"), hop("a", "c"), hop("a", "d")]
    assert play(flows, [sizes, [PIECE], [2 * PIECE]]) == pytest.approx([RATE / 3] * 3, rel=0.02)


flows_between_five = st.lists(
    st.lists(st.sampled_from("abcde"), min_size=2, max_size=2, unique=True), min_size=1, max_size=8
)


@settings(max_examples=40)
@given(flows_between_five, st.lists(st.sampled_from([RATE / 2, RATE, RATE * 2]), min_size=10, max_size=10))
def test_shares_are_max_min_fair_within_two_percent(pairs: list[list[str]], rates: list[float]) -> None:
    rate_of = dict(zip([f"{node}-{way}" for node in "abcde" for way in ("out", "in")], rates, strict=True))
    paths = [tuple(link(name, rate_of[name]) for name in (f"{a}-out", f"{b}-in")) for a, b in pairs]
    assert play(paths) == pytest.approx(max_min(paths), rel=0.02)


def test_no_second_carries_more_than_the_rate() -> None:
    flow, chance = ShapedFlow((link("a-out"),), LocalCalendar(), PIECE), random.Random(2)
    now, departures = 0.0, []
    for _ in range(2_000):
        now += chance.choice([0.0, 0.001, 0.01, 0.1])
        piece, departs = flow.book(chance.randrange(1, PIECE), now)
        departures.append((departs, piece))
        now = max(now, departs - 0.01)
    times = [at for at, _ in departures]
    assert times == sorted(times)
    for start in range(0, 1_900, 50):
        carried = sum(piece for _, piece in departures[start + 1 : start + 100])
        assert carried <= RATE * (times[start + 99] - times[start]) + 1


def test_a_sender_that_wakes_late_is_charged_as_if_it_had_been_punctual() -> None:
    flow = ShapedFlow((link("a-out"),), LocalCalendar(), PIECE)
    _, first = flow.book(PIECE, 5.0)
    _, second = flow.book(PIECE, first + LATE_SECONDS / 2)
    assert [first, second] == pytest.approx([5 + PIECE / RATE, 5 + 2 * PIECE / RATE])


def test_a_sender_that_was_idle_saves_nothing_up() -> None:
    flow = ShapedFlow((link("a-out"),), LocalCalendar(), PIECE)
    flow.book(PIECE, 5.0)
    _, departs = flow.book(PIECE, 6.0)
    assert departs == pytest.approx(6 + PIECE / RATE)


def test_nothing_holds_up_a_flow_that_uses_no_link() -> None:
    assert ShapedFlow((), LocalCalendar(), PIECE).book(100, 5.0) == (100, 5.0)


def test_pieces_are_about_ten_milliseconds_long_within_bounds_and_whole_mib() -> None:
    assert piece_bytes_for(20e6) == 200_000
    assert piece_bytes_for(100e6) == 1 << 20
    assert piece_bytes_for(390e6) == 4 << 20
    assert piece_bytes_for(1.0) == MIN_PIECE_BYTES
    assert piece_bytes_for(1e12) == MAX_PIECE_BYTES
