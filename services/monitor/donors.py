"""Which models give an instance back because another has none, or too few, and no worker is spare. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

# A client that asks one thing after the other leaves short gaps, in which nothing is idle.
IDLE_SECONDS = 1.0


@dataclass(frozen=True)
class Lack:
    """A model that waits for `workers` more, each with room for `rank_bytes`."""

    model: str
    workers: int
    rank_bytes: int


@dataclass(frozen=True)
class Donor:
    """A model that has more instances than it needs, and more than its minimum; each is of `workers`, whose arenas have
    `arena_bytes` and more."""

    model: str
    idle_seconds: float
    workers: int
    arena_bytes: int


def choose_donors(lacks: Sequence[Lack], donors: Sequence[Donor], freeing: int) -> dict[str, str]:
    """Who gives one instance back, and for whom; who has been idle longest comes first. `freeing`: workers that are
    being given back already."""
    chosen: dict[str, str] = {}
    able = sorted(donors, key=lambda one: (-one.idle_seconds, one.model))
    for lack in sorted(lacks, key=lambda one: one.model):
        covered = min(freeing, lack.workers)
        freeing -= covered
        for donor in able:
            fits = donor.idle_seconds >= IDLE_SECONDS and donor.arena_bytes >= lack.rank_bytes
            if covered < lack.workers and fits and donor.model not in (lack.model, *chosen):
                chosen[donor.model] = lack.model
                covered += donor.workers
    return chosen
