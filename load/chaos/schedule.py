"""What goes wrong when: a schedule of faults from a seed, the same for the same seed and targets."""

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

Kind = Literal["kill", "freeze", "scale"]

# Of ten faults; a target that was just hit has time to come back before it is hit again.
KINDS: tuple[tuple[Kind, int], ...] = (("kill", 5), ("freeze", 3), ("scale", 2))
FIRST_SECONDS = 3.0
GAP_SECONDS = (3.0, 8.0)
TOGETHER_SECONDS = 0.2
TOGETHER_SHARE = 0.15
FREEZE_SECONDS = (1.0, 8.0)
REST_SECONDS = 12.0
# The last quarter, or so many seconds, is left to recover in.
CALM_SECONDS = 15.0


class Fault(msgspec.Struct, frozen=True):
    """`at` seconds after the load's start. A target is frozen for `seconds`; a scale is to `instances`."""

    at: float
    kind: Kind
    target: str
    seconds: float = 0.0
    instances: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "kill":
                return f"kill {self.target}"
            case "freeze":
                return f"freeze {self.target} for {self.seconds:.1f} s"
            case "scale":
                return f"scale to {self.instances}"


class Targets(msgspec.Struct, frozen=True):
    """Processes that may be hit, by name, and the most instances there can be; half of the hits go to workers."""

    workers: Sequence[str]
    others: Sequence[str]
    instances: int


def plan_faults(seed: int, seconds: float, targets: Targets) -> tuple[Fault, ...]:
    """Faults for a load of so many seconds."""
    chance = random.Random(seed)
    rested: dict[str, float] = {}  # when a target may be hit again
    faults: list[Fault] = []
    at = FIRST_SECONDS
    end = seconds - min(CALM_SECONDS, seconds / 4)
    while at < end:
        kind = chance.choices([kind for kind, _ in KINDS], [share for _, share in KINDS])[0]
        fault = _make(chance, kind, at, targets, rested)
        if fault is not None:
            faults.append(fault)
            rested[fault.target] = at + fault.seconds + REST_SECONDS
        together = chance.random() < TOGETHER_SHARE
        at += TOGETHER_SECONDS if together else chance.uniform(*GAP_SECONDS)
    return tuple(faults)


def _make(chance: random.Random, kind: Kind, at: float, targets: Targets, rested: dict[str, float]) -> Fault | None:
    """None where everybody has been hit just now."""
    if kind == "scale":
        return Fault(at, kind, "", instances=chance.randint(1, targets.instances))
    group = targets.workers if not targets.others or chance.random() < 0.5 else targets.others
    able = [name for name in group if rested.get(name, 0.0) <= at]
    if not able:
        return None
    return Fault(at, kind, chance.choice(able), chance.uniform(*FREEZE_SECONDS) if kind == "freeze" else 0.0)
