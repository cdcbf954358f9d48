"""Which layers the target runs while its parameters arrive, and what it lets go: the modes of live scaling. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from livescale.services.worker.zigzag.tasks import Entry


class Rule(Protocol):
    """Asked while blocks are missing, and only for layers that are loaded."""

    def runs(self, entry: Entry, layers: int) -> bool:
        """Whether the target may run the task's next layer."""

    def leaves(self, entry: Entry) -> bool:
        """Whether a source may have the task."""


class Off:
    """Stop the world: the target runs nothing before it is whole."""

    def runs(self, entry: Entry, layers: int) -> bool:
        return False

    def leaves(self, entry: Entry) -> bool:
        return True


class BestEffort:
    """BlitzScale's baseline (5.2): of each task as many layers as are loaded when its turn comes, at most half of them;
    then it is the source's, whatever is loaded later."""

    def runs(self, entry: Entry, layers: int) -> bool:
        return not entry.parked and entry.done < layers // 2

    def leaves(self, entry: Entry) -> bool:
        return entry.parked


class ZigZag:
    """Fig. 16: whatever is loaded is run, until a source has room for the task; a parked task is come back to."""

    def runs(self, entry: Entry, layers: int) -> bool:
        return True

    def leaves(self, entry: Entry) -> bool:
        return True


@dataclass(frozen=True)
class Planned:
    """The optimum (`ilp.solve`): of each task so many layers, then it is a source's. What came after the plan was made
    is as with ZigZag."""

    on_target: Mapping[str, int]

    def runs(self, entry: Entry, layers: int) -> bool:
        return entry.done < self.on_target.get(entry.task.id, layers)

    def leaves(self, entry: Entry) -> bool:
        return entry.done >= self.on_target.get(entry.task.id, 0)


OFF, BEST_EFFORT, ZIGZAG = Off(), BestEffort(), ZigZag()
