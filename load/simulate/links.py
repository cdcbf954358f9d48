"""The links of a simulated cluster: all that is sent shares those of the topology fairly."""

from livescale.load.simulate.usage import CountedFlows
from livescale.shared.links.contract import Link
from livescale.shared.links.shaping import Cluster
from livescale.shared.simulation.fair_links import FairLink, FairShares
from livescale.shared.simulation.modelled_links import ModelledNetwork
from livescale.shared.topology.topology import Topology


class VirtualLinks:
    """Opens the link of each process. `network` carries what is sent, `flows` count it."""

    def __init__(self, topology: Topology, delay_seconds: float) -> None:
        self.network = ModelledNetwork(delay_seconds)
        self.flows = CountedFlows()
        self._topology = topology
        self._shares = FairShares(self.flows)

    async def open(self, id: str, place: str) -> Link:
        return FairLink(self.network.open(id.encode()), Cluster(self._topology, place), self._shares)
