"""What may befall messages of the local bus by chance: some get lost, some come late, some come twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from livescale.shared.simulation.listeners import Delays

LATE_SECONDS = 0.3  # a late message comes so much later at most
COPY_SECONDS = 0.5  # as does the copy of one that comes twice


@dataclass(frozen=True)
class Disturbance:
    """The shares of all messages that are lost, late, or come twice."""

    losses: float = 0.0
    delays: float = 0.0
    copies: float = 0.0

    def __add__(self, other: "Disturbance") -> "Disturbance":
        return Disturbance(self.losses + other.losses, self.delays + other.delays, self.copies + other.copies)


def disturbed(usual: Delays, disturbance: Disturbance, chance: Random) -> Delays:
    """The `delays` of a broker whose messages are disturbed; they take their `usual` time besides."""

    def fate(subject: str) -> Sequence[float]:
        if chance.random() < disturbance.losses:
            return ()
        late = chance.uniform(0.0, LATE_SECONDS) if chance.random() < disturbance.delays else 0.0
        times = [seconds + late for seconds in usual(subject)]
        if chance.random() < disturbance.copies:
            times.append(chance.uniform(0.0, COPY_SECONDS))
        return times

    return fate
