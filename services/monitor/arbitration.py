"""Which model gives an instance back where another lacks one and no worker is spare. Pure.

Models are served by priority. An instance is taken, in this order, from

1. a model that has been idle for a second: it has more than the upper end of its need;
2. a model of the same priority or a lower one that has had more than the lower end of its need for five seconds;
3. a model that is outranked: of lower priority, or of the same one where the other has no instance at all.

No model goes below its minimum, and one that is outranked keeps its last instance. Nothing is taken in circles. What
makes no instance together with the spare workers is not taken at all, and these are kept until the rest is there. What
was taken by rule 2 or 3 brings a model up to the lower end of its need, so it has nothing that could be taken back by
rule 2; rule 3 goes down in priority, or ends with an instance for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# A client that asks one thing after the other leaves short gaps, in which nothing is idle.
IDLE_SECONDS = 1.0
# The lower end of a need moves with the load: what is free for a moment is none too many.
SURPLUS_SECONDS = 5.0


@dataclass(frozen=True)
class Lack:
    """A model that waits for more workers, each with room for `rank_bytes`.

    It is content with `wanted`, the middle of its need, and at `least` it no longer lacks anything. With `next_one` it
    has one more instance. All three are beyond the `loose` workers that are spare, and too few for an instance.
    `has_none` says that no instance of it is there or coming.
    """

    model: str
    wanted: int
    least: int
    rank_bytes: int
    priority: int = 0
    has_none: bool = False
    next_one: int = 1
    loose: int = 0


@dataclass(frozen=True)
class Donor:
    """A model that has more instances than its `minimum`. Its need is `low` to `high` instances.

    `idle_seconds` and `surplus_seconds`: for how long it has had more than the upper and the lower end of its need;
    None if it has not. Each instance has `workers` workers, and each of their arenas has at least `arena_bytes`.
    """

    model: str
    instances: int
    idle_seconds: float | None
    surplus_seconds: float | None
    workers: int
    arena_bytes: int
    priority: int = 0
    minimum: int = 0
    low: int = 0
    high: int = 0

    def could_give(self, rule: int) -> int:
        """How many workers it could give by a rule, one instance after the other."""
        least = {1: self.high, 2: self.low, 3: 1}[rule]
        return max(0, self.instances - max(self.minimum, least)) * self.workers


@dataclass(frozen=True)
class Given:
    """To which model an instance goes, and why it is this one that is taken."""

    to: str
    reason: str


def choose_donors(lacks: Sequence[Lack], donors: Sequence[Donor], freeing: int) -> dict[str, Given]:
    """Which models give an instance back now, by name, and for which others.

    `freeing` is how many workers are being given back already.
    """
    chosen: dict[str, Given] = {}
    for lack in sorted(lacks, key=lambda one: (-one.priority, not one.has_none, one.model)):
        if not can_be_served(lack, donors, freeing):
            continue  # what was given would be of no use, and be taken back
        covered = min(freeing, lack.wanted)
        freeing -= covered
        able = [(*found, donor) for donor in donors if (found := _find_rule(donor, lack)) is not None]
        for rule, reason, donor in sorted(able, key=_order):
            most = lack.wanted if rule == 1 else lack.least
            if covered < most and donor.model not in chosen:
                chosen[donor.model] = Given(lack.model, reason)
                covered += donor.workers
    return chosen


def can_be_served(lack: Lack, donors: Sequence[Donor], freeing: int) -> bool:
    """Whether a model can have one more instance, of its loose workers, those that are being given back, and those
    that others could give."""
    found = ((donor, _find_rule(donor, lack)) for donor in donors)
    return freeing + sum(donor.could_give(able[0]) for donor, able in found if able is not None) >= lack.next_one


def _order(one: tuple[int, str, Donor]) -> tuple[int, int, float, str]:
    """The lowest priority first, and of the same one whatever has been free the longest."""
    rule, _, donor = one
    return rule, donor.priority, -((donor.idle_seconds if rule == 1 else donor.surplus_seconds) or 0.0), donor.model


def _find_rule(donor: Donor, lack: Lack) -> tuple[int, str] | None:
    """The first rule by which this model gives an instance to that one, and how it is said; None if there is none."""
    if donor.model == lack.model or donor.arena_bytes < lack.rank_bytes:
        return None
    if donor.idle_seconds is not None and donor.idle_seconds >= IDLE_SECONDS:
        return 1, f"this one has been idle for {donor.idle_seconds:.1f} s"
    surplus = donor.surplus_seconds
    if surplus is not None and surplus >= SURPLUS_SECONDS and lack.priority >= donor.priority:
        return 2, f"this one has had more than it needs for {surplus:.1f} s"
    if donor.instances > 1 and lack.priority > donor.priority:
        return 3, f"it has priority {lack.priority}, this one {donor.priority}"
    if donor.instances > 1 and lack.priority == donor.priority and lack.has_none:
        return 3, f"it has none, this one {donor.instances}"
    return None
