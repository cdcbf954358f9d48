"""Plans which faults happen when. The same seed and targets give the same schedule."""

import random
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from livescale.shared.messages.membership import Role

Kind = Literal["kill", "freeze", "scale", "stall", "role"]

# Out of ten faults. A target that was just hit has time to come back before it is hit again.
KINDS: tuple[tuple[Kind, int], ...] = (("kill", 5), ("freeze", 2), ("scale", 3))
FIRST_SECONDS = 3.0
GAP_SECONDS = (2.0, 6.0)
TOGETHER_SECONDS = 0.2
TOGETHER_SHARE = 0.15
WORKER_FREEZE_SECONDS = (1.0, 10.0)
FREEZE_SECONDS = (0.5, 4.0)
REST_SECONDS = 12.0
# The last quarter, or so many seconds, is left to recover in.
CALM_SECONDS = 15.0

# All processes stand still together, like a machine whose CPUs are taken away: for how long, and how often.
STALL_SECONDS = (0.3, 5.0)
STALL_GAP_SECONDS = (6.0, 16.0)

# An instance gets another role so often.
ROLE_GAP_SECONDS = (1.0, 4.0)
ROLES: tuple[Role, ...] = ("prefill", "decode", "colocated")

# The process that has this part in the scale that is under way when the fault comes.
LOADING, SOURCE = "a loading worker", "a source"
# The share of manual scales that go to every worker, and the time after which a fault follows a scale. It mostly hits a
# worker that loads or sends then.
AMBUSH_SHARE = 0.7
AMBUSH_SECONDS = (0.1, 1.3)
PART_SHARE = 0.6


class Fault(msgspec.Struct, frozen=True):
    """`at` seconds after the load's start. A target is frozen for `seconds`, or everything in a stall, or is given the
    `role`; a scale is to `instances`, and `then` strikes `then.at` seconds after the planner took it."""

    at: float
    kind: Kind
    target: str
    seconds: float = 0.0
    instances: int = 0
    then: "Fault | None" = None
    role: Role = "colocated"

    def __str__(self) -> str:
        match self.kind:
            case "kill":
                return f"kill {self.target}"
            case "freeze":
                return f"freeze {self.target} for {self.seconds:.1f} s"
            case "scale":
                return f"scale to {self.instances}"
            case "stall":
                return f"freeze everything for {self.seconds:.1f} s"
            case "role":
                return f"have {self.target} be {self.role}"


class FaultTargets(msgspec.Struct, frozen=True):
    """Processes that may be hit, by name, and the most instances there can be; half of the hits go to workers."""

    workers: Sequence[str]
    others: Sequence[str]
    instances: int

    @property
    def names(self) -> list[str]:
        return [*self.workers, *self.others]


def plan_faults(
    seed: int, seconds: float, targets: FaultTargets, *, stalls: bool = False, roles: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """Faults for a load of so many seconds. `roles` are the workers that get others. With stalls or roles the others
    are the same as without."""
    faults = [*plan_hits(seed, seconds, targets), *plan_roles(seed, seconds, roles)]
    return tuple(sorted([*faults, *(plan_stalls(seed, seconds) if stalls else ())], key=lambda fault: fault.at))


def plan_roles(seed: int, seconds: float, workers: Sequence[str]) -> Iterator[Fault]:
    """Plan which workers get which role. One that is spare then refuses, and nothing happens."""
    chance = random.Random(f"roles {seed}")
    at = FIRST_SECONDS
    while workers and (at := at + chance.uniform(*ROLE_GAP_SECONDS)) < disturbed_until(seconds):
        yield Fault(at, "role", chance.choice(workers), role=chance.choice(ROLES))


def plan_stalls(seed: int, seconds: float) -> Iterator[Fault]:
    chance = random.Random(f"stalls {seed}")
    at = FIRST_SECONDS
    while (at := at + chance.uniform(*STALL_GAP_SECONDS)) < disturbed_until(seconds):
        yield Fault(at, "stall", "", chance.uniform(*STALL_SECONDS))


def disturbed_until(seconds: float) -> float:
    return seconds - min(CALM_SECONDS, seconds / 4)


def plan_hits(seed: int, seconds: float, targets: FaultTargets) -> tuple[Fault, ...]:
    """All faults of a schedule but the stalls."""
    chance = random.Random(seed)
    rested: dict[str, float] = {}  # when a target may be hit again
    faults: list[Fault] = []
    at = FIRST_SECONDS
    end = disturbed_until(seconds)
    while at < end:
        kind = chance.choices([kind for kind, _ in KINDS], [share for _, share in KINDS])[0]
        fault = _scale(chance, at, targets, rested) if kind == "scale" else _hit(chance, kind, at, targets, rested)
        if fault is not None:
            faults.append(fault)
        together = chance.random() < TOGETHER_SHARE
        at += TOGETHER_SECONDS if together else chance.uniform(*GAP_SECONDS)
    return tuple(faults)


def _hit(chance: random.Random, kind: Kind, at: float, targets: FaultTargets, rested: dict[str, float]) -> Fault | None:
    """Return a target to hit, or None where each has been hit just now."""
    group = targets.workers if not targets.others or chance.random() < 0.5 else targets.others
    able = [name for name in group if rested.get(name, 0.0) <= at]
    if not able:
        return None
    target = chance.choice(able)
    seconds = 0.0
    if kind == "freeze":
        seconds = chance.uniform(*(WORKER_FREEZE_SECONDS if target in targets.workers else FREEZE_SECONDS))
    rested[target] = at + seconds + REST_SECONDS
    return Fault(at, kind, target, seconds)


def _scale(chance: random.Random, at: float, targets: FaultTargets, rested: dict[str, float]) -> Fault:
    if chance.random() >= AMBUSH_SHARE:
        return Fault(at, "scale", "", instances=chance.randint(1, targets.instances))
    delay = chance.uniform(*AMBUSH_SECONDS)
    if targets.workers and chance.random() < PART_SHARE:
        kind: Kind = chance.choice(("kill", "freeze"))
        seconds = chance.uniform(*WORKER_FREEZE_SECONDS) if kind == "freeze" else 0.0
        then: Fault | None = Fault(delay, kind, chance.choice((LOADING, LOADING, SOURCE)), seconds)
    else:
        hit = _hit(chance, "kill", at + delay, targets, rested)
        then = hit and msgspec.structs.replace(hit, at=delay)
    return Fault(at, "scale", "", instances=targets.instances, then=then)
