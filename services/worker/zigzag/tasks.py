"""Tasks of a live scale: what target and source share, layer by layer. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A request, or a batch of them that stay together: prompts, or one step of decoding, of which each is a task of
    its own.

    `weight`: how long one layer of it takes, on the target as on a source (BlitzScale 5.4): 1 where all batches are
    alike, else seconds from measured layer times (`LayerTimes`). `rows`: of its activation.
    """

    id: str
    arrival: float
    weight: float = 1.0
    priority: int = 0
    rows: int = 1

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


@dataclass(frozen=True)
class Room:
    """Of what runs together: so many tasks, and so many rows. One task alone may have more of them."""

    tasks: int = 1
    rows: int = 0

    def batch(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """The first of these, and those that follow while there is room: none is overtaken by one that is smaller."""
        chosen: list[Entry] = []
        left = self.rows
        for entry in entries:
            left -= entry.task.rows
            if chosen and (left < 0 or len(chosen) == self.tasks):
                break
            chosen.append(entry)
        return tuple(chosen)

    def batches(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
        """All of these."""
        while entries:
            batch = self.batch(entries)
            yield batch
            entries = entries[len(batch) :]


ALONE = Room()
