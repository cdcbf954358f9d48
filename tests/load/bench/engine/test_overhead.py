import pytest

from livescale.load.bench.engine.overhead import FEW, MANY, StepCost, layer_cost


def test_a_layer_costs_what_more_layers_cost() -> None:
    cost = layer_cost(StepCost(1e-3, 0.4e-3), StepCost(1e-3 + (MANY - FEW) * 3e-4, 0.4e-3 + (MANY - FEW) * 1e-4))
    assert cost.layer == pytest.approx(3e-4)
    assert cost.outside == pytest.approx(2e-4)
