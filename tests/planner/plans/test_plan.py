import pytest

from livescale.services.planner.plans.plan import CannotPlan, TransferFlow, find_tails, multicast_over
from tests.planner.plans.clusters import BLOCKS, cluster, parts, singles


def test_tails_are_the_targets_whose_nic_sends_nothing_over_the_network() -> None:
    nics = {"s": "s", "a": "a", "b": "box", "c": "box", "d": "d"}
    flows = [
        TransferFlow("s", "a", (0,)),
        TransferFlow("a", "b", (0,)),
        TransferFlow("b", "c", (0,), over="domain"),
    ]
    assert find_tails(flows, ["a", "b", "c"], nics) == ("b", "c")
    assert find_tails([*flows, TransferFlow("c", "d", (0,))], ["a", "b", "c", "d"], nics) == ("d",)


def test_a_target_that_misses_nothing_or_what_it_holds_is_refused() -> None:
    topology = cluster(*singles(2))
    with pytest.raises(ValueError, match="target h0/0 misses nothing"):
        parts(topology, {"h1/0": {0}}, {"h0/0": ()})
    with pytest.raises(ValueError, match="target h0/0 holds blocks that it misses"):
        parts(topology, {"h0/0": {0}}, {"h0/0": (0, 1)})
    with pytest.raises(ValueError, match="h1 is a source twice"):
        parts(topology, {"h1": {0}}, {"h0/0": (0, 1)}, disks=["h1"])


def test_an_id_that_the_topology_lacks_is_named() -> None:
    with pytest.raises(CannotPlan, match="'h9/0' is neither a GPU nor a host of the topology"):
        multicast_over(cluster(*singles(2)), BLOCKS, ["h9/0"], ["h0/0"])
