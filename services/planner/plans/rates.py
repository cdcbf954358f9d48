"""The rates of a plan's flows, which share links fairly. Pure."""

from collections.abc import Sequence

from livescale.services.planner.plans.network import ClusterNode, Multicast, serving_rates
from livescale.services.planner.plans.plan import TransferFlow
from livescale.shared.links.fair_rates import fair_rates
from livescale.shared.topology.paths import path_between

Link = tuple[str, str]  # kind and owner
# What one flow cannot use goes to others, which may hold up others still. That is settled after a few rounds.
ROUNDS = 8
LEAST_SHARE = 0.05  # of a link is left for parameters, however much serving has been measured to send


class Links:
    """The links of a set of flows: which of them each flow uses, and what serving leaves of each."""

    def __init__(self, flows: Sequence[TransferFlow], multicast: Multicast) -> None:
        nodes = multicast.nodes
        self._serving = serving_rates(multicast)
        self._numbers: dict[Link, int] = {}
        self.capacity: list[float] = []
        self.used_by = [self._path(nodes[flow.sender], nodes[flow.receiver]) for flow in flows]

    def _path(self, sender: ClusterNode, receiver: ClusterNode) -> tuple[int, ...]:
        resources = path_between(sender.at, receiver.at).resources
        links = [self._number((resource.kind, resource.owner), resource.rate) for resource in resources]
        if sender.place == "disk":
            links.append(self._number(("disk", sender.at.host), sender.at.disk))
        return tuple(links)

    def _number(self, link: Link, capacity: float) -> int:
        number = self._numbers.setdefault(link, len(self.capacity))
        if number == len(self.capacity):
            left = capacity - self._serving.get(link, 0.0)
            self.capacity.append(max(left, capacity * LEAST_SHARE))
        return number

    def slack(self, rates: Sequence[float]) -> list[float]:
        """Return how much each flow could have besides its rate if the others kept theirs, in bytes a second."""
        left = list(self.capacity)
        for links, rate in zip(self.used_by, rates, strict=True):
            for link in links:
                left[link] -= rate
        return [max(0.0, min((left[link] for link in links), default=0.0)) for links in self.used_by]


def sustained_speeds(
    multicast: Multicast, flows: Sequence[TransferFlow], upstream: Sequence[Sequence[int]], order: Sequence[int]
) -> list[float]:
    """Return the rate that each flow's links let it have.

    A flow that is held up by the flow before it leaves the rest of its share to others. `upstream` has the flows that
    bring what each flow sends, and `order` is one in which they come first.
    """
    links = Links(flows, multicast)
    rates = fair_rates(links.used_by, links.capacity, [float("inf")] * len(flows))
    for _ in range(ROUNDS):
        held, caps = list(rates), [float("inf")] * len(flows)
        for index in order:
            for up in upstream[index]:
                if flows[up].blocks == flows[index].blocks:
                    caps[index] = min(caps[index], held[up] * flows[up].lanes / flows[index].lanes)
            held[index] = min(rates[index], caps[index])
        if held == rates:
            break
        rates = fair_rates(links.used_by, links.capacity, caps)
    return [rate + slack for rate, slack in zip(rates, links.slack(rates), strict=True)]
