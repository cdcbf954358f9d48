import pytest

from livescale.services.planner.plans.network import multicast_over
from livescale.services.planner.plans.plan import CannotPlan
from tests.planner.plans.clusters import BLOCKS, cluster, parts, singles


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
