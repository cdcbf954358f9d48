"""What serving leaves of the NICs. Pure."""

from services.planner.plans.network import Multicast, Node
from services.planner.plans.plan import Direction

# Serving traffic below this share of a link's bandwidth is not worth a detour.
BUSY_SHARE = 0.05


class Traffic:
    """How busy serving keeps each NIC, by direction: measured rates against bandwidth, not roles (BlitzScale 5.1)."""

    def __init__(self, multicast: Multicast) -> None:
        self._nics = multicast.nics
        self._rates: dict[tuple[str, Direction], float] = {}
        for flow in multicast.serving:
            key = (self._nics.get(flow.node, flow.node), flow.direction)
            self._rates[key] = self._rates.get(key, 0.0) + flow.rate

    def share(self, node: Node, direction: Direction) -> float:
        """Of the NIC's bandwidth that serving takes in this direction."""
        bandwidth = node.at.nic_out if direction == "out" else node.at.nic_in
        return self._rates.get((node.at.nic, direction), 0.0) / bandwidth

    def is_busy(self, node: Node, direction: Direction) -> bool:
        return bool(self._rates) and self.share(node, direction) > BUSY_SHARE
