"""Spare workers that are counted as they are heard are as many as looking at each would find."""

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.monitor.spares import SpareWorkers

STALE_SECONDS = 2.0
IDS = st.sampled_from("abcdef")
# Of a worker, what it is heard with, or None where it is spare no longer; and the seconds since the one before.
HEARD = st.tuples(IDS, st.sampled_from([10, 20, 30, None]), st.floats(0, 1.5))


@given(st.lists(HEARD), st.sampled_from([0, 10, 15, 30, 31]), st.sets(IDS), st.floats(0, 3))
def test_as_many_fit_as_looking_at_each_would_find(
    heard: list[tuple[str, int | None, float]], least: int, taken: set[str], after: float
) -> None:
    spares, known, now = SpareWorkers(STALE_SECONDS), dict[str, tuple[int, float]](), 0.0
    for id, arena_bytes, gap in heard:
        now += gap
        known.pop(id, None)
        if arena_bytes is None:
            spares.remove(id)
        else:
            spares.heard(id, arena_bytes, now)
            known[id] = (arena_bytes, now)
    now += after
    fitting = [
        id
        for id, (arena_bytes, at) in known.items()
        if arena_bytes >= least and now - at <= STALE_SECONDS and id not in taken
    ]
    assert spares.count(least, taken, now) == len(fitting)


@given(st.lists(st.tuples(IDS, st.sampled_from(["v", "old", None, "gone"]), st.floats(0, 1.5))), st.sets(IDS))
def test_those_that_keep_parameters_of_a_version_are_as_many_as_looking_at_each_would_find(
    heard: list[tuple[str, str | None, float]], taken: set[str]
) -> None:
    spares, known, now = SpareWorkers(STALE_SECONDS), dict[str, tuple[str | None, float]](), 0.0
    for id, parked, gap in heard:
        now += gap
        if parked == "gone":
            spares.remove(id)
            known.pop(id, None)
        else:
            spares.heard(id, 10, now, parked)
            known[id] = (parked, now)
    keeping = [id for id, (kept, at) in known.items() if kept == "v" and now - at <= STALE_SECONDS and id not in taken]
    assert spares.count_parked("v", taken, now) == len(keeping)
