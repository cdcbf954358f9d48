"""Tasks of a live scale: what target and source share, layer by layer. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A batch of requests that run together: prompts, or one step of decoding, of which each is a task of its own.

    `weight`: how long one layer of it takes, on the target as on a source (BlitzScale 5.4): 1 where all batches are
    alike, else seconds from measured layer times (`LayerTimes`).
    """

    id: str
    arrival: float
    weight: float = 1.0
    priority: int = 0

    @property
    def order(self) -> tuple[int, float, str]:
        """First come, first served, among those of the same priority (lower goes first)."""
        return self.priority, self.arrival, self.id


@dataclass(eq=False)
class Entry:
    """A task in a target's queue. `done`: the layers that were run. `parked`: the target went on without it, when its
    next layer was not to be run here."""

    task: Task
    done: int = 0
    parked: bool = False
