import pytest

from livescale.services.planner.settings import PlannerSettings


def test_a_policy_that_makes_no_pipelines_is_refused_with_the_mode_that_needs_them() -> None:
    with pytest.raises(ValueError, match="choose --plan-policy binomial, or leave it out"):
        PlannerSettings(live="pipeline", plan_policy="chains")
    assert PlannerSettings().policy_for("pipeline") == "binomial"
    assert PlannerSettings().policy_for("zigzag") == "chains"
    assert PlannerSettings(plan_policy="tree").policy_for("zigzag") == "tree"
