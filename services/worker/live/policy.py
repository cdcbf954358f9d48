"""Decisions of live scaling: which layers a target runs and gives away, and which targets a source asks for work.
Pure."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from livescale.services.worker.live.tasks import AskTarget, QueuedTask, SourceEffect, StopAsking
from livescale.shared.policy.invariants import check


class Rule(Protocol):
    """Which tasks a target runs while blocks are missing. It is asked only about layers that are loaded."""

    def runs(self, entry: QueuedTask, layers: int) -> bool:
        """Return whether the target may run the next layer of this task, of a model of so many layers."""

    def leaves(self, entry: QueuedTask) -> bool:
        """Return whether a source may have the task now."""


class Off:
    """Stop the world: the target runs nothing before it is whole."""

    def runs(self, entry: QueuedTask, layers: int) -> bool:
        return False

    def leaves(self, entry: QueuedTask) -> bool:
        return True


class BestEffort:
    """BlitzScale's baseline (5.2).

    When a task's turn comes the target runs as many layers of it as are loaded, at most half of them. Then the task is
    a source's, whatever is loaded later.
    """

    def runs(self, entry: QueuedTask, layers: int) -> bool:
        return not entry.parked and entry.done < layers // 2

    def leaves(self, entry: QueuedTask) -> bool:
        return entry.parked


class ZigZag:
    """Fig. 16: the target runs whatever is loaded, until a source has room for the task, and comes back to parked
    tasks.
    """

    def runs(self, entry: QueuedTask, layers: int) -> bool:
        return True

    def leaves(self, entry: QueuedTask) -> bool:
        return True


@dataclass(frozen=True)
class Planned:
    """The optimum of `optimum.solve`: the target runs so many layers of each task, then it is a source's.

    Tasks that came after the plan was made are treated as by ZigZag.
    """

    on_target: Mapping[str, int]

    def runs(self, entry: QueuedTask, layers: int) -> bool:
        return entry.done < self.on_target.get(entry.task.id, layers)

    def leaves(self, entry: QueuedTask) -> bool:
        return entry.done >= self.on_target.get(entry.task.id, 0)


OFF, BEST_EFFORT, ZIGZAG = Off(), BestEffort(), ZigZag()


class SourcePolicy:
    """An instance that helps targets (BlitzScale 5.2, Fig. 16, lines 4-7): it decides when to ask which of them for
    work.

    It pulls only when nothing of its own waits. Targets that may have more are asked one at a time, in turn. Where none
    has anything all are asked, and it takes what comes first. Two targets may then answer at the same time: it runs
    what both gave before it pulls again.
    """

    def __init__(self) -> None:
        self._targets: dict[str, None] = {}  # in the order in which it came to help them
        self._have_more: dict[str, None] = {}  # or were never asked; the one that gave last is last
        self._asked: set[str] = set()

    @property
    def helps(self) -> bool:
        """Whether it helps any target. If not it is an instance like any other."""
        return bool(self._targets)

    def help(self, target: str) -> tuple[SourceEffect, ...]:
        """Help this target too. A source that waits already for all others asks it at once."""
        asks = bool(self._asked) and self._asked == self._targets.keys()
        if target not in self._targets:
            self._targets[target] = self._have_more[target] = None
        return self._ask({target}) if asks else ()

    def idle(self, waiting: int) -> tuple[SourceEffect, ...]:
        """Note that nothing runs here. So many tasks of its own wait, those that were handed over included."""
        if waiting or self._asked:
            return ()
        return self._ask(set(islice(self._have_more, 1)) or self._targets.keys())

    def nothing(self, target: str) -> tuple[SourceEffect, ...]:
        """Note that this target, which was asked, has nothing for now. Others may have something."""
        self._have_more.pop(target, None)
        if target not in self._asked:
            return ()
        if not self._have_more:
            return self._ask(self._targets.keys())
        self._asked.remove(target)
        return StopAsking(target, "others may have something"), *self._ask(set(islice(self._have_more, 1)))

    def busy(self, target: str | None = None, *, more: bool = False) -> tuple[SourceEffect, ...]:
        """Note that work has come, from this target or of its own. Other targets need not answer any more.

        `more` says whether the target has more.
        """
        others = [other for other in self._targets if other in self._asked and other != target]
        self._asked = set()
        if target is not None:
            self._have_more.pop(target, None)
        if target in self._targets and more:
            self._have_more[target] = None
        return tuple(StopAsking(other, "work came from elsewhere") for other in others)

    def leave(self, target: str) -> None:
        """Help this target no longer: it released the source, or is gone."""
        self._targets.pop(target, None)
        self._have_more.pop(target, None)
        self._asked.discard(target)

    def _ask(self, targets: Set[str]) -> tuple[SourceEffect, ...]:
        new = [target for target in self._targets if target in targets and target not in self._asked]
        self._asked |= set(new)
        return tuple(AskTarget(target, "nothing waits here") for target in new)

    def check_invariants(self) -> None:
        """Check that only targets that the source helps are asked, or known to have more. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        for target in (self._asked | self._have_more.keys()) - self._targets.keys():
            yield f"source: {target} is asked, or has more, and is not helped"
