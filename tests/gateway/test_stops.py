"""Stop strings are found wherever the text is cut, and nothing of them gets out."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.stops import StopScanner

LETTERS = st.text("ab ", max_size=30)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=4)


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the text is cut: the stop string complete first, and of those the one that began first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts)
    return None


@given(LETTERS, STOPS, st.sets(st.integers(0, 30)))
def test_the_result_does_not_depend_on_the_cuts(text: str, stops: list[str], cuts: set[int]) -> None:
    scanner = StopScanner(stops)
    emitted, stopped = "", False
    for start, end in pairwise(sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})):
        scanned = scanner.feed(text[start:end])
        emitted += scanned.text
        stopped = scanned.stop is not None
        if stopped:
            break
    expected = first_stop(text, stops)
    assert stopped == (expected is not None)
    assert emitted + ("" if stopped else scanner.flush()) == text[:expected]


@given(LETTERS, STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    scanned = StopScanner(stops).feed(text)
    if scanned.stop is None:
        held = text[len(scanned.text) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_everything_passes() -> None:
    assert StopScanner([]).feed("abc").text == "abc"
