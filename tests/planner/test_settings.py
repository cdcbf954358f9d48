import pytest

from livescale.services.planner.settings import PlannerSettings
from livescale.shared.topology.file import find_topology


def test_a_policy_that_makes_no_pipelines_is_refused_with_the_mode_that_needs_them() -> None:
    with pytest.raises(ValueError, match="choose --plan-policy binomial, or leave it out"):
        PlannerSettings(live="pipeline", plan_policy="chains")
    assert PlannerSettings().policy_for("pipeline") == "binomial"
    assert PlannerSettings().policy_for("zigzag") == "chains"
    assert PlannerSettings(plan_policy="tree").policy_for("zigzag") == "tree"


def test_links_have_the_rate_of_the_slowest_nic_unless_one_is_given() -> None:
    cluster = find_topology("cluster-b")
    assert PlannerSettings().in_topology(cluster).link_rate == cluster.slowest_nic > 0
    assert PlannerSettings(link_rate=5.0).in_topology(cluster).link_rate == 5.0
    assert PlannerSettings().in_topology(None).link_rate == 0.0
