"""What serving leaves of the NICs. Pure."""

from services.planner.plans.network import Multicast, Node
from services.planner.plans.plan import Direction

# Serving traffic below this share of a link's bandwidth is not worth a detour.
BUSY_SHARE = 0.05


def nic_rates(multicast: Multicast) -> dict[tuple[str, str], float]:
    """What serving sends through NICs, by direction of link and whose NIC it is."""
    nics = multicast.nics
    rates: dict[tuple[str, str], float] = {}
    for flow in multicast.serving:
        link = f"nic_{flow.direction}", nics.get(flow.node, flow.node)
        rates[link] = rates.get(link, 0.0) + flow.rate
    return rates


class Traffic:
    """How busy serving keeps each NIC, by direction: measured rates against bandwidth, not roles (BlitzScale 5.1)."""

    def __init__(self, multicast: Multicast) -> None:
        self._rates = nic_rates(multicast)

    def share(self, node: Node, direction: Direction) -> float:
        """Of the NIC's bandwidth that serving takes in this direction."""
        bandwidth = node.at.nic_out if direction == "out" else node.at.nic_in
        return self._rates.get((f"nic_{direction}", node.at.nic), 0.0) / bandwidth

    def is_busy(self, node: Node, direction: Direction) -> bool:
        return bool(self._rates) and self.share(node, direction) > BUSY_SHARE
