from hypothesis import given
from hypothesis import strategies as st

from livescale.services.planner.plans.pipelines import pipeline_ready
from livescale.services.planner.stages import Span, broken_cover, choose_stages, work

BLOCKS = 6
ARRIVALS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.dictionaries(st.integers(0, BLOCKS - 1), st.sampled_from([1.0, 2.0, 3.0, 4.0]), max_size=BLOCKS),
    min_size=1,
)


def stages(**held: list[int]) -> list[str]:
    return list(map(str, choose_stages({worker: set(blocks) for worker, blocks in held.items()}, BLOCKS)))


def test_each_runs_the_part_that_it_has() -> None:
    assert stages(a=[0, 1, 2], b=[3, 4, 5]) == ["a 0-2", "b 3-5"]
    assert stages(a=[3, 4, 5], b=[0, 1, 2]) == ["b 0-2", "a 3-5"]


def test_the_worker_changes_as_seldom_as_possible() -> None:
    assert stages(a=[0, 3], b=[0, 1, 2, 3, 4], c=[4, 5]) == ["b 0-4", "c 5-5"]
    assert stages(a=[0, 2, 4], b=[1, 3, 5]) == [f"{'ab'[block % 2]} {block}-{block}" for block in range(BLOCKS)]


def test_of_equals_it_is_who_has_the_least_to_do_then_the_first_by_id() -> None:
    assert stages(a=[0, 1, 3, 4, 5], b=[2], c=[3, 4, 5]) == ["a 0-1", "b 2-2", "c 3-5"]
    assert stages(b=[0, 1, 2], a=[0, 1, 2], c=[3, 4, 5]) == ["a 0-2", "c 3-5"]


def test_there_are_none_while_a_block_is_missing() -> None:
    assert stages(a=[0, 1, 2], b=[4, 5]) == []
    assert stages(a=[], b=[1, 2, 3, 4, 5]) == []
    assert stages() == []


def test_a_head_that_shares_its_parameters_with_the_embedding_runs_where_that_is() -> None:
    held = {"a": {0, 1, 2, 3}, "b": {3, 4, 5}}
    assert choose_stages(held, BLOCKS, tied=True) == []
    assert choose_stages({**held, "b": {0, 3, 4, 5}}, BLOCKS, tied=True) == [Span("a", 0, 4), Span("b", 4, 6)]


@given(ARRIVALS, st.booleans())
def test_stages_cover_each_block_once_by_holders_from_the_moment_that_readiness_says(
    ready: dict[str, dict[int, float]], tied: bool
) -> None:
    known = {block for times in ready.values() for block in times}
    at = pipeline_ready(list(ready), ready, tied=tied)
    for now in (0.5, 1.0, 2.0, 3.0, 4.0):
        held = {worker: {block for block, time in times.items() if time <= now} for worker, times in ready.items()}
        chosen = choose_stages(held, BLOCKS, tied=tied)
        if chosen:
            assert list(broken_cover(chosen, held, BLOCKS)) == []
            assert sum(work(chosen, worker) for worker in ready) == BLOCKS
            assert not tied or 0 in held[chosen[-1].worker]
        # Targets get every block: of one that never gets the embedding nothing would be said.
        if len(known) == BLOCKS and all(0 in times for times in ready.values()):
            assert bool(chosen) == (now >= at)
