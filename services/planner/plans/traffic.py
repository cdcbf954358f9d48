"""What serving leaves of the links. Pure."""

from livescale.services.planner.plans.network import Multicast, Node
from livescale.services.planner.plans.plan import Direction, LinkKind

# Serving traffic below this share of a link's bandwidth is not worth a detour.
BUSY_SHARE = 0.05


def serving_rates(multicast: Multicast) -> dict[tuple[str, str], float]:
    """What serving sends, bytes/s, by kind and direction of the link (as paths name them) and its owner."""
    nics = multicast.nics
    rates: dict[tuple[str, str], float] = {}
    for flow in multicast.serving:
        owner = nics.get(flow.node, flow.node) if flow.over == "nic" else flow.node
        link = f"{flow.over}_{flow.direction}", owner
        rates[link] = rates.get(link, 0.0) + flow.rate
    return rates


class Traffic:
    """How busy serving keeps each link, by direction: measured rates against bandwidth, not roles (BlitzScale 5.1)."""

    def __init__(self, multicast: Multicast) -> None:
        self._rates = serving_rates(multicast)
        self._used = {(flow.over, flow.direction) for flow in multicast.serving}

    def share(self, node: Node, direction: Direction, over: LinkKind = "nic") -> float:
        """Of the bandwidth of a node's link that serving takes in this direction."""
        if (over, direction) not in self._used:
            return 0.0
        owner, bandwidth = node.link(over, direction)
        rate = self._rates.get((f"{over}_{direction}", owner), 0.0)
        return rate / bandwidth if bandwidth else 0.0

    def is_busy(self, node: Node, direction: Direction, over: LinkKind = "nic") -> bool:
        return self.share(node, direction, over) > BUSY_SHARE
