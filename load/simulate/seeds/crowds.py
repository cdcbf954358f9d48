"""Crowded systems: requests come without a pause, and what goes wrong meets many of them under way.

In other systems requests come in bursts, most of which are over when a drain, a new router or an outage comes. Crowds
are drawn from a source of chance of their own: the seeds that have none stay what they are.
"""

from collections.abc import Callable, Sequence
from random import Random

from livescale.load.simulate.seeds.history import GATEWAY, SeedFault, SeedFaultKind
from livescale.load.simulate.seeds.stories import (
    Cast,
    kv_cut_off,
    router_asleep,
    up_and_down,
)
from livescale.shared.messages.model_spec import ModelSpec

SHARE = 0.1  # of all seeds: one of a crowd takes twice as long


def has_crowd(seed: int) -> bool:
    """Whether the system of a seed is crowded."""
    return Random(f"crowd {seed}").random() < SHARE


class Crowd(Cast):
    """The cast of a crowded system. Its operator knows how many instances each model may have."""

    def __init__(self, chance: Random, processes: Sequence[str], specs: Sequence[ModelSpec]) -> None:
        super().__init__(chance, processes, [spec.name for spec in specs])
        self._specs = specs

    def up_and_down(self, at: float, less: float) -> list[SeedFault]:
        """One model is to have all the instances that it may have, and later fewer again."""
        spec = self.chance.choice(self._specs)
        fewer = self.chance.randint(spec.min_instances, max(spec.min_instances, spec.max_instances - 1))
        both = (at, spec.max_instances), (less, fewer)
        return [SeedFault(when, "scale", spec.name, amount=float(amount)) for when, amount in both]


def drained_unheard(cast: Crowd, at: float) -> list[SeedFault]:
    """Messages are late while instances drain, and then nothing is heard for a while: the bus is down, the planner is
    cut off for about as long as it waits for an answer, or another one takes over."""
    less = at + cast.soon(1.5, 3.5)
    late = SeedFault(at, "delay", "", less - at + cast.soon(2.0, 4.0), 0.5)
    outage = SeedFault(less, "outage", "", cast.soon(0.2, 2.0), when="draining")
    dies = SeedFault(less, "kill", "planner-0", cast.soon(0.05, 0.5), when="draining")
    deaf = SeedFault(less, "part", "planner-0", cast.soon(4.6, 5.4), when="draining")
    return [*cast.up_and_down(at, less), late, cast.chance.choice((deaf, deaf, deaf, outage, dies))]


def callers_gone(cast: Crowd, at: float) -> list[SeedFault]:
    """A gateway ends with all of its clients while requests move away from instances that drain, to workers that may
    not answer just then."""
    less = at + cast.soon(1.5, 3.5)
    what: SeedFaultKind = cast.chance.choice(("part", "freeze"))
    silent = SeedFault(less, what, "", cast.soon(0.8, 2.2), when="taking over")
    gone = SeedFault(less, "stop", GATEWAY, cast.soon(0.2, 1.0), when="emptying", wait=cast.soon(0.1, 1.2))
    return [*cast.up_and_down(at, less), gone, *([silent] if cast.chance.random() < 0.8 else [])]


def office_changes(cast: Crowd, at: float) -> list[SeedFault]:
    """The office passes from router to router, or its holder misses a second, while requests move and messages are
    late."""
    late = SeedFault(at, "delay", "", cast.soon(5.0, 7.0), 0.5)
    # Who sleeps may miss what it would have counted: it excuses too much to be mixed with the others.
    what: SeedFaultKind = cast.chance.choice(("stop", "stop", "freeze"))
    changes = list[SeedFault]()
    for number in range(4):
        seconds = cast.soon(1.1, 2.2) if what == "freeze" else cast.soon(0.05, 0.3)
        who, wait = cast.chance.choice(cast.routers), cast.soon(0.0, 0.3)
        changes.append(SeedFault(at + 1.5 * number, what, who, seconds, when="moving KV", wait=wait))
    return [*cast.up_and_down(at, at + cast.soon(1.5, 3.5)), late, *changes]


def outages(cast: Crowd, at: float) -> list[SeedFault]:
    """The bus is down again and again, sometimes for longer than a process is missed."""
    begins = sorted(at + cast.soon(0.0, 4.0) for _ in range(cast.chance.randint(1, 4)))
    gone = [SeedFault(one, "outage", seconds=cast.soon(0.1, 1.5)) for one in begins]
    return [*cast.up_and_down(at, at + cast.soon(1.5, 3.5)), *gone]


CROWD_STORIES: Sequence[Callable[[Crowd, float], list[SeedFault]]] = (
    *[drained_unheard, callers_gone, office_changes] * 3,
    *(outages, kv_cut_off, router_asleep, up_and_down),
)


def crowd_faults(cast: Crowd) -> list[SeedFault]:
    """What happens to a crowded system, from when its crowd is there."""
    return cast.chance.choice(CROWD_STORIES)(cast, cast.soon(0.0, 1.0))
