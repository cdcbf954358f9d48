"""Crowded systems: short answers are asked for without a pause, and what goes wrong meets some of them under way.

In other systems requests come in bursts, most of which are over when a drain, a new router or an outage comes. Crowds
are drawn from a source of chance of their own: the seeds that have none stay what they are.
"""

from collections.abc import Sequence
from random import Random

from livescale.load.simulate.seeds.history import GATEWAY, SeedFault, SeedFaultKind
from livescale.load.simulate.seeds.stories import (
    Cast,
    Story,
    drained_twice,
    kv_cut_off,
    router_asleep,
    router_back_moving,
    router_goes,
    up_and_down,
)

SHARE = 0.15  # of all seeds


def has_crowd(seed: int) -> bool:
    """Whether the system of a seed is crowded."""
    return Random(f"crowd {seed}").random() < SHARE


def drained_unheard(cast: Cast, at: float) -> list[SeedFault]:
    """Messages are late while instances drain, and then nothing is heard for a while: the bus is down, the planner is
    cut off for about as long as it waits for an answer, or another one takes over."""
    less = at + cast.soon(1.5, 3.5)
    late = SeedFault(at, "delay", "", less - at + cast.soon(2.0, 4.0), 0.5)
    outage = SeedFault(less, "outage", "", cast.soon(0.2, 2.0), when="draining")
    dies = SeedFault(less, "kill", "planner-0", cast.soon(0.05, 0.5), when="draining")
    deaf = SeedFault(less, "part", "planner-0", cast.soon(4.5, 6.0), when="draining")
    return [cast.scale(at, 4, 8), late, cast.scale(less, 0, 1), cast.chance.choice((outage, outage, dies, deaf))]


def callers_gone(cast: Cast, at: float) -> list[SeedFault]:
    """A gateway ends with all of its clients while requests move away from instances that drain."""
    less = at + cast.soon(1.5, 3.5)
    gone = SeedFault(less, "stop", GATEWAY, cast.soon(0.2, 1.0), when="emptying", wait=cast.soon(0.0, 0.5))
    return [cast.scale(at, 2, 4, 8), cast.scale(less, 1), gone]


def office_changes(cast: Cast, at: float) -> list[SeedFault]:
    """The office passes from router to router, or its holder misses a second, while requests move and messages are
    late."""
    late = SeedFault(at, "delay", "", cast.soon(5.0, 7.0), 0.5)
    changes = list[SeedFault]()
    for number in range(6):
        what: SeedFaultKind = cast.chance.choice(("stop", "stop", "freeze"))
        seconds = cast.soon(1.1, 2.2) if what == "freeze" else cast.soon(0.05, 0.3)
        who, wait = cast.chance.choice(cast.routers), cast.soon(0.0, 0.3)
        changes.append(SeedFault(at + number, what, who, seconds, when="moving KV", wait=wait))
    return [cast.scale(at, 4, 8), late, *changes, cast.scale(at + cast.soon(1.5, 3.5), 1, 2)]


def outages(cast: Cast, at: float) -> list[SeedFault]:
    """The bus is down again and again, sometimes for longer than a process is missed."""
    begins = sorted(at + cast.soon(0.0, 4.0) for _ in range(cast.chance.randint(1, 4)))
    return [cast.scale(at, 2, 4, 8), *(SeedFault(one, "outage", seconds=cast.soon(0.1, 1.5)) for one in begins)]


CROWD_STORIES: Sequence[Story] = (
    *(drained_unheard, callers_gone, office_changes, outages),
    *(drained_twice, kv_cut_off, router_asleep, router_back_moving, router_goes, up_and_down),
)


def crowd_faults(cast: Cast) -> list[SeedFault]:
    """What happens to a crowded system, from when its crowd is there."""
    return cast.chance.choice(CROWD_STORIES)(cast, cast.soon(0.0, 1.0))
