from hypothesis import given
from hypothesis import strategies as st

from livescale.services.planner.plans.pipelines import pipeline_ready, plan_pipelines, plan_replicas


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


def test_who_follows_in_a_domain_makes_pipelines_with_those_who_follow_in_others() -> None:
    """Fig. 6(c): two sub-groups, of two domains and of one."""
    groups = [[["a0", "a1"], ["b0", "b1", "b2"]], [["c0", "c1"]]]
    assert list(plan_replicas(groups)) == [("a0", "c0"), ("b0",), ("a1", "c1"), ("b1",), ("b2",)]
    assert list(plan_replicas([])) == []


def test_a_head_that_shares_its_parameters_with_the_embedding_needs_it_at_the_same_node() -> None:
    ready = {"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {0: 5.0, 1: 6.0, 2: 3.0}}
    assert pipeline_ready(["a", "b"], ready) == 3.0
    assert pipeline_ready(["a", "b"], ready, tied=True) == 5.0
