"""What links could have carried at most, from what was delivered over them."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from livescale.load.simulate.seeds.evidence import places_of
from livescale.load.simulate.seeds.history import Delivered
from livescale.load.simulate.seeds.system import SeedSystem
from livescale.shared.topology.paths import Resource
from livescale.shared.transfer.flow_end import HERE
from livescale.shared.transfer.sender import SENDS


@dataclass
class BusyLink:
    """How far one direction of a link is `ahead` of its rate, in bytes, since it last had nothing to carry.

    Each channel is a flow of its own. What of it was under way when one begins to count comes within no time; `early`
    counts it, and `first` how many messages of each channel that were.
    """

    since: float
    ahead: float = 0.0
    early: float = 0.0
    first: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    is_broken: bool = False

    def carry(self, one: Delivered, rate: float, spare: float) -> None:
        """Count a message that came; the link is broken where that is more than it can carry, and `spare` bytes."""
        self.ahead -= rate * (one.at - self.since)
        self.since = one.at
        if self.ahead <= 0.0:
            self.ahead = self.early = 0.0
            self.first.clear()
        self.ahead += one.size_bytes
        channel = one.sender, one.receiver, one.channel
        # A process that stood still hands over at once whatever has passed the links meanwhile: chunks, and the
        # heartbeats of their flow between them.
        if one.size_bytes > len(HERE) and self.first[channel] < SENDS:
            self.first[channel] += 1
            self.early += one.size_bytes
        self.is_broken = self.is_broken or self.ahead > self.early + spare


def path_finder(system: SeedSystem) -> Callable[[Delivered], Sequence[Resource]]:
    """What finds the links that a message passes."""
    place, topology = places_of(system), system.cluster.topology

    @functools.cache
    def path(sender: str, receiver: str) -> Sequence[Resource]:
        return topology.path(place[sender], place[receiver]).resources

    return lambda one: path(one.sender, one.receiver)
