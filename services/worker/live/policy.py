"""Tasks of a live scale, and decisions on them: which layers a target runs and gives away, and which targets a source
asks for work. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.messages.images import MOST_IMAGE_BYTES
from livescale.shared.policy.invariants import check


@dataclass(frozen=True)
class LiveTask:
    """A request, or a batch of requests that stay together: prompts, or one step of decoding each.

    `weight` says how long one layer of it takes, on the target as on a source (BlitzScale 5.4): 1 where all batches are
    alike, else seconds from measured layer times (`LayerTimes`). `rows` are those of its activation.
    """

    id: str
    arrival: float
    weight: float = 1.0
    priority: int = 0
    rows: int = 1

    @property
    def order(self) -> tuple[int, float, str]:
        """The key by which tasks are sorted: priority (lower goes first), then arrival, then id."""
        return self.priority, self.arrival, self.id


@dataclass(eq=False)
class QueuedTask:
    """A task in a target's queue.

    `done` counts the layers that were run. A `parked` task waits while the target goes on with others, as its next
    layer was not to be run here.
    """

    task: LiveTask
    done: int = 0
    parked: bool = False


@dataclass(frozen=True)
class BatchBudget:
    """How much runs together: at most so many tasks, and so many rows. One task alone may have more rows."""

    tasks: int = 1
    rows: int = 0

    def batch(self, entries: Iterable[QueuedTask]) -> tuple[QueuedTask, ...]:
        """Return the first of these and those that follow within the budget. No task is overtaken by a smaller one."""
        chosen: list[QueuedTask] = []
        left = self.rows
        for entry in entries:
            left -= entry.task.rows
            if chosen and (left < 0 or len(chosen) == self.tasks):
                break
            chosen.append(entry)
        return tuple(chosen)

    def batches(self, entries: Sequence[QueuedTask]) -> Iterator[tuple[QueuedTask, ...]]:
        """Cut these into batches, one after the other."""
        while entries:
            batch = self.batch(entries)
            yield batch
            entries = entries[len(batch) :]


TOLD_IMAGE_BYTES = MOST_IMAGE_BYTES * 3 // 4  # what is left is for the rest of each request
ALONE = BatchBudget()


def batch_budget(limits: SchedulerLimits, joined_rows: int) -> BatchBudget:
    """Return how much is worth running together, where a layer takes no longer for up to `joined_rows` rows.

    Requests that go to a source are told of in one message, which has room for so many images.
    """
    tasks = limits.max_num_seqs
    if limits.images is not None:
        tasks = min(tasks, max(1, TOLD_IMAGE_BYTES // limits.images.size_bytes))
    return BatchBudget(tasks, min(joined_rows, limits.max_num_batched_tokens))


@dataclass(frozen=True)
class RunLayer:
    """Run this layer of the tasks now, together. `layer` counts from 0."""

    tasks: tuple[str, ...]
    layer: int
    reason: str


@dataclass(frozen=True)
class GiveTask:
    """Send the task to the source.

    It goes whole where no layer of it was run, else with its activation and KV, and the source runs the layers from
    `layers_done` on. All that go to a source at the same time answer the same pull.
    """

    task: str
    source: str
    layers_done: int
    reason: str


@dataclass(frozen=True)
class FinishTask:
    """All layers were run here: choose the tokens and stream them."""

    task: str
    reason: str


@dataclass(frozen=True)
class Release:
    """Tell the source that this target needs no help any more."""

    source: str
    reason: str


@dataclass(frozen=True)
class GiveBack:
    """Bring the task elsewhere, with what was computed of it or from its start: the target will not go on with it."""

    task: str
    layers_done: int
    reason: str


@dataclass(frozen=True)
class AskTarget:
    """Ask this target for tasks, as many as can run together."""

    target: str
    reason: str


@dataclass(frozen=True)
class StopAsking:
    """Ask this target for nothing more, for now."""

    target: str
    reason: str


QueueEffect = RunLayer | GiveTask | FinishTask | Release | GiveBack
SourceEffect = AskTarget | StopAsking


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
