"""Who hears a message: the same as by comparing it with every subscription, without doing so."""

import sys
from collections.abc import Callable, Iterable
from itertools import count
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.bus.codec import matches
from livescale.shared.simulation import listeners
from livescale.shared.simulation.listeners import Listener, ListenerTable

WORDS = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(WORDS, min_size=1, max_size=4).map(".".join)
WANTED = st.tuples(st.lists(WORDS | st.just("*"), max_size=3), st.sampled_from(["a", "*", ">"])).map(
    lambda parts: ".".join([*parts[0], parts[1]])
)
ACTS = st.one_of(
    st.tuples(st.just("add"), WANTED, st.sampled_from(["", "", "one", "other"])),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("send"), SUBJECTS),
)


def listener(wanted: str, queue: str = "") -> Listener:
    return Listener(wanted, queue, lambda subject, data, headers, reply: None)


class EveryListener:
    """Compares a subject with every subscription."""

    def __init__(self) -> None:
        self.all: list[Listener] = []
        self._turn = count()

    def choose(self, subject: str) -> list[Listener]:
        hear = [one for one in self.all if matches(one.wanted, subject)]
        queues = dict.fromkeys(one.queue for one in hear if one.queue)
        groups = [[one for one in hear if one.queue == queue] for queue in queues]
        picked = [group[next(self._turn) % len(group)] for group in groups]
        return [one for one in hear if not one.queue or one in picked]


@given(st.lists(ACTS, max_size=40))
def test_a_message_goes_to_whom_comparing_it_with_every_subscription_would_find(acts: list[tuple[Any, ...]]) -> None:
    table, every = ListenerTable(), EveryListener()
    for act, *told in acts:
        if act == "add":
            every.all.append(listener(*told))
            table.add(every.all[-1])
        elif act == "remove" and every.all:
            gone = every.all.pop(told[0] % len(every.all))
            table.remove(gone)
            assert gone not in table.listeners
        elif act == "send":
            assert list(table.choose(told[0])) == every.choose(told[0])
    assert all(one in table.listeners for one in every.all)
    for one in every.all:
        table.remove(one)
    assert table._root.following == {}


def lines(work: Callable[[], object]) -> int:
    """Count the lines of the module that `work` runs through."""
    ran = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal ran
        if frame.f_code.co_filename != listeners.__file__:
            return None
        ran += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return ran


def table_with(subjects: Iterable[str]) -> ListenerTable:
    table = ListenerTable()
    for subject in subjects:
        table.add(listener(subject))
    return table


def work_beside(others: int) -> list[int]:
    """Lines that it takes to add, find and remove one listener beside so many others, each on subjects never sent
    to."""
    table, own = (
        table_with(f"worker.w{number}.{what}" for number in range(others) for what in ("load", "*")),
        "worker.me",
    )
    one = listener(f"{own}.load")
    return [
        lines(lambda: table.add(one)),
        lines(lambda: table.choose(f"{own}.load")),
        lines(lambda: table.choose(f"{own}.nobody")),
        lines(lambda: table.remove(one)),
    ]


def test_a_message_costs_no_more_however_many_listen_on_other_subjects() -> None:
    few, many = work_beside(2), work_beside(2_000)
    assert all(few)
    assert many == few
