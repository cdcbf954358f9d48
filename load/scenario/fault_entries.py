"""The faults of a scenario as its file tells them, and as they are drawn: what befalls whom, and when."""

from collections.abc import Sequence
from random import Random
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from livescale.load.scenario.arrivals import Moment
from livescale.load.simulate.faults import MESSAGE_KINDS, ClusterFault, FaultKind
from livescale.shared.runtime.settings import Settings

# How long each lasts where nothing is said.
USUAL_SECONDS: dict[FaultKind, float] = {
    "kill": 1.0,
    "freeze": 5.0,
    "part": 5.0,
    "lose": 10.0,
    "delay": 10.0,
    "repeat": 10.0,
    "slow-disk": 60.0,
    "cut-link": 5.0,
    "damage": 10.0,
}
USUAL_AMOUNT = {"lose": 0.01, "delay": 0.05, "repeat": 0.05, "slow-disk": 10.0, "damage": 0.01}


class FaultEntry(Settings, frozen=True, kw_only=True):
    """A fault `at` a moment, or by chance: `every` so many seconds on average.

    `who` is a process (worker-3), a service (worker) or a machine of the topology. By a moment it befalls all of them,
    by chance one of them. It lasts for `seconds`, or for good: `.inf`. `amount` is the share of messages that are lost,
    late, repeated or damaged, and how many times as slow a disk is. `other` is the other end of a link that is cut.
    """

    what: FaultKind
    at: Moment | None = None
    every: Annotated[float, Meta(gt=0)] | None = None
    who: str = ""
    other: str = ""
    seconds: Annotated[float, Meta(ge=0)] | None = None
    amount: Annotated[float, Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if (self.at is None) == (self.every is None):
            raise ValueError("give either 'at' or 'every'")
        if (self.what in MESSAGE_KINDS) != (not self.who):
            raise ValueError(
                f"{self.what} has no 'who', as it happens to messages; leave it out"
                if self.who
                else f"{self.what} needs 'who': the process, service or machine that it happens to"
            )
        if (self.what == "cut-link") != bool(self.other):
            raise ValueError("'other' is the other end of a link; give it with cut-link, and with no other fault")
        if self.amount is not None and self.what not in USUAL_AMOUNT:
            raise ValueError(f"'amount' has no effect with {self.what}; leave it out")
        if self.what != "slow-disk" and self.amount is not None and self.amount > 1:
            raise ValueError(f"'amount' is a share of messages, 0 to 1, not {self.amount:g}")

    def fault(self, at: float) -> ClusterFault:
        return ClusterFault(
            at=at,
            what=self.what,
            who=self.who,
            other=self.other,
            seconds=USUAL_SECONDS[self.what] if self.seconds is None else self.seconds,
            amount=USUAL_AMOUNT.get(self.what, 0.0) if self.amount is None else self.amount,
        )


def draw_faults(entries: Sequence[tuple[FaultEntry, Sequence[str]]], seconds: float, seed: int) -> list[ClusterFault]:
    """All faults in the order of their times. With each entry go the processes that it may befall.

    What is drawn for an entry does not depend on those before it, so that scenarios which differ in one compare.
    """
    found = list[ClusterFault]()
    for number, (entry, able) in enumerate(entries):
        chance = Random(f"{seed} fault {number}")
        if entry.at is not None:
            found.append(entry.fault(entry.at))
            continue
        assert entry.every is not None
        at = chance.expovariate(1 / entry.every)
        while at < seconds:
            fault = entry.fault(at)
            found.append(replace(fault, who=chance.choice(able)) if able else fault)
            at += chance.expovariate(1 / entry.every)
    return sorted(found, key=lambda fault: fault.at)
