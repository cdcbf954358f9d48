from hypothesis import given
from hypothesis import strategies as st

from livescale.services.planner.plans.execution_pipelines import (
    StageSpan,
    assigned_blocks,
    broken_cover,
    choose_stages,
    pipeline_ready,
    plan_pipelines,
    plan_replicas,
)


def test_one_node_of_each_sub_group() -> None:
    """Fig. 5."""
    assert list(plan_pipelines([["3", "4", "5"], ["6", "7", "8"]])) == [("3", "6"), ("4", "7"), ("5", "8")]


def test_the_rest_of_one_sub_group_is_a_pipeline_by_itself() -> None:
    assert list(plan_pipelines([["a"], ["b", "c", "d"]])) == [("a", "b"), ("c", "d")]
    assert list(plan_pipelines([["a", "b"]])) == [("a", "b")]


def test_larger_sub_groups_go_on_with_each_other() -> None:
    groups = [["a"], ["b", "c"], ["d", "e", "f"]]
    assert list(plan_pipelines(groups)) == [("a", "b", "d"), ("c", "e"), ("f",)]


@given(st.lists(st.integers(0, 6), max_size=6))
def test_every_node_is_in_one_pipeline(sizes: list[int]) -> None:
    groups = [[f"{number}.{index}" for index in range(size)] for number, size in enumerate(sizes)]
    planned = list(plan_pipelines(groups))
    assert sorted(node for pipeline in planned for node in pipeline) == sorted(
        node for group in groups for node in group
    )
    assert all(planned)


def test_a_pipeline_is_ready_when_the_last_block_is_at_one_of_its_nodes() -> None:
    ready = {"a": {0: 1.0, 1: 4.0}, "b": {0: 3.0, 1: 2.0}}
    assert pipeline_ready(["a"], ready) == 4.0
    assert pipeline_ready(["a", "b"], ready) == 2.0


def test_a_node_that_follows_in_a_domain_makes_pipelines_with_those_of_other_domains() -> None:
    """Fig. 6(c): two sub-groups, of two domains and of one."""
    groups = [[["a0", "a1"], ["b0", "b1", "b2"]], [["c0", "c1"]]]
    assert list(plan_replicas(groups)) == [("a0", "c0"), ("b0",), ("a1", "c1"), ("b1",), ("b2",)]
    assert list(plan_replicas([])) == []


def test_a_head_that_shares_its_parameters_with_the_embedding_needs_it_at_the_same_node() -> None:
    ready = {"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {0: 5.0, 1: 6.0, 2: 3.0}}
    assert pipeline_ready(["a", "b"], ready) == 3.0
    assert pipeline_ready(["a", "b"], ready, tied=True) == 5.0


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


def test_ties_go_to_the_worker_with_the_least_to_do_then_to_the_first_by_id() -> None:
    assert stages(a=[0, 1, 3, 4, 5], b=[2], c=[3, 4, 5]) == ["a 0-1", "b 2-2", "c 3-5"]
    assert stages(b=[0, 1, 2], a=[0, 1, 2], c=[3, 4, 5]) == ["a 0-2", "c 3-5"]


def test_there_are_none_while_a_block_is_missing() -> None:
    assert stages(a=[0, 1, 2], b=[4, 5]) == []
    assert stages(a=[], b=[1, 2, 3, 4, 5]) == []
    assert stages() == []


def test_a_head_that_shares_its_parameters_with_the_embedding_runs_where_that_is() -> None:
    held = {"a": {0, 1, 2, 3}, "b": {3, 4, 5}}
    assert choose_stages(held, BLOCKS, tied=True) == []
    assert choose_stages({**held, "b": {0, 3, 4, 5}}, BLOCKS, tied=True) == [StageSpan("a", 0, 4), StageSpan("b", 4, 6)]


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
            assert sum(assigned_blocks(chosen, worker) for worker in ready) == BLOCKS
            assert not tied or 0 in held[chosen[-1].worker]
        # Targets get every block: of one that never gets the embedding nothing would be said.
        if len(known) == BLOCKS and all(0 in times for times in ready.values()):
            assert bool(chosen) == (now >= at)
