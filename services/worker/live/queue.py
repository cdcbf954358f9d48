"""The queue of a target whose parameters are still arriving (BlitzScale 5.2, Fig. 16). Pure."""

from bisect import insort
from collections.abc import Iterator
from enum import StrEnum
from itertools import takewhile

from livescale.services.worker.live.policy import (
    ALONE,
    ZIGZAG,
    BatchBudget,
    FinishTask,
    GiveBack,
    GiveTask,
    LiveTask,
    QueuedTask,
    QueueEffect,
    Release,
    Rule,
    RunLayer,
)
from livescale.shared.policy.invariants import StateMachine, check


class QueuePhase(StrEnum):
    """How far a live load has come.

    live: blocks are missing. draining: all are there, and sources still take tasks. plain: the target serves alone.
    """

    LIVE = "live"
    DRAINING = "draining"
    PLAIN = "plain"
    ABORTED = "aborted"


MOVES = StateMachine(
    "a target's queue",
    {
        QueuePhase.LIVE: frozenset({QueuePhase.DRAINING, QueuePhase.ABORTED}),
        QueuePhase.DRAINING: frozenset({QueuePhase.PLAIN, QueuePhase.ABORTED}),
        QueuePhase.PLAIN: frozenset({QueuePhase.ABORTED}),
        QueuePhase.ABORTED: frozenset(),
    },
)


class LiveQueue:
    """Tasks in order of arrival, which the target runs layer by layer and sources pull.

    The target runs one layer at a time, of the earliest task whose next layer is loaded. Later tasks at the same layer
    run with it, within `budget`, as a layer of few rows takes as long as one of some more. Sources pull the earliest
    task, and as many after it as they want to run together, each with the layers that were done.

    A layer is what is loaded as a block and run as a step. The embedding goes with the first one, and the head counts
    as a layer of its own where it is loaded last.

    For events at the same time, the order of calls is `block_ready`, `layer_done`, `pull`, `next`, `append`: a pull
    goes before the target, and the target before new tasks. A task whose layer is being run leaves when that layer is
    done. A pull whose turn such a task is waits for it, as earlier tasks go first.

    Once the last block is there, the first task is finished here, and others still leave. The first pull that finds
    nothing is answered with `Release`, and from then on the target is an instance like any other.

    The number of tasks is not limited: their KV blocks are limit enough. A limit such as BlitzScale's, of 4 batches and
    one less every 200 ms, makes mean latency up to 10 % longer. That holds also where two targets share what waits
    outside. Any source may pull what waits here, and nothing runs ahead of what waits outside.
    """

    def __init__(self, layers: int, rule: Rule = ZIGZAG, budget: BatchBudget = ALONE) -> None:
        self.layers = layers
        self.loaded = 0  # from the first on without a gap
        self.phase = QueuePhase.LIVE
        self._rule, self._budget = rule, budget
        self._blocks: set[int] = set()
        self._entries: list[QueuedTask] = []
        self._running: tuple[QueuedTask, ...] = ()
        self._last: tuple[QueuedTask, ...] = ()  # of what was run before, what is still here
        self._pulls: dict[str, BatchBudget] = {}  # what sources want, in the order in which they asked

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, task_id: str) -> bool:
        return any(entry.task.id == task_id for entry in self._entries)

    @property
    def unbegun(self) -> tuple[LiveTask, ...]:
        """The tasks of which no layer has been run or is being run, in order."""
        return tuple(entry.task for entry in self._entries if not entry.done and entry not in self._running)

    def go_by(self, rule: Rule) -> tuple[QueueEffect, ...]:
        """Follow another rule from here on, also for tasks that are already here."""
        self._rule = rule
        return tuple(self._answer())

    @property
    def work(self) -> float:
        """How long the target would take for what is here, without the layer that is being run."""
        left = ((entry, self.layers - entry.done - (entry in self._running)) for entry in self._entries)
        return sum(entry.task.weight * layers for entry, layers in left)

    def append(self, task: LiveTask, done: int = 0) -> tuple[QueueEffect, ...]:
        """Add a task, new or with layers that another process has run.

        Raises ValueError for an id that is in the queue, for more layers than there are, and after an abort.
        """
        if self.phase is QueuePhase.ABORTED:
            raise ValueError(f"task {task.id}: the queue was aborted")
        if task.id in self:
            raise ValueError(f"task {task.id} is here already")
        if not 0 <= done < self.layers:
            raise ValueError(f"task {task.id}: {done} layers are done, of {self.layers}")
        insort(self._entries, QueuedTask(task, done), key=lambda entry: entry.task.order)
        return tuple(self._answer())

    def block_ready(self, layer: int) -> tuple[QueueEffect, ...]:
        """Note that a layer's block is verified, in whatever order. Raises ValueError for a layer the model lacks."""
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer {layer} is none of {self.layers}")
        self._blocks.add(layer)
        while self.loaded in self._blocks:
            self.loaded += 1
        if self.loaded == self.layers and self.phase is QueuePhase.LIVE:
            self.phase = MOVES.advance(self.phase, QueuePhase.DRAINING)
        return tuple(self._answer())

    def next(self) -> tuple[QueueEffect, ...]:
        """Return the layer that the target runs next, as a `RunLayer`, or nothing where there is none to run."""
        if self._running:
            raise ValueError(f"a layer of task {self._running[0].task.id} is already being run")
        ready = [entry for entry in self._entries if self._may_run(entry)]
        chosen = self._budget.batch(entry for entry in ready if entry.done == ready[0].done)
        last, self._last, self._running = self._last, chosen, chosen
        if not chosen:
            return ()
        first = chosen[0]
        run = RunLayer(tuple(entry.task.id for entry in chosen), first.done, _why(first, last))
        for entry in chosen:
            entry.parked = False
        return (run,)

    def layer_done(self) -> tuple[QueueEffect, ...]:
        """Note that the layer of the last `RunLayer` is done. Raises ValueError when none is being run."""
        if not self._running:
            raise ValueError("no layer is being run")
        # Those that were removed meanwhile are not here any more.
        ran, self._running = [entry for entry in self._running if entry in self._entries], ()
        for entry in ran:
            entry.done += 1
            entry.parked = entry.done < self.layers and not self._may_run(entry)
        finished = [entry for entry in ran if entry.done == self.layers]
        for entry in finished:
            self._take(entry)
        effects: list[QueueEffect] = [FinishTask(entry.task.id, "all layers were run here") for entry in finished]
        return *effects, *self._answer()

    def pull(self, source: str, budget: BatchBudget = ALONE) -> tuple[QueueEffect, ...]:
        """Note that the source has nothing to do, and could run so much together.

        Its pull stays until it is answered or withdrawn. Asked again, it is still one.
        """
        self._pulls[source] = budget
        return tuple(self._answer())

    def withdraw(self, source: str) -> None:
        """Drop the pull of a source that found work elsewhere, or is gone."""
        self._pulls.pop(source, None)

    def remove(self, task_id: str) -> tuple[QueueEffect, ...]:
        """Drop a task whose client waits no longer. A task that is not here is no error."""
        for entry in [entry for entry in self._entries if entry.task.id == task_id]:
            self._take(entry)
        return tuple(self._answer())

    def abort(self, reason: str) -> tuple[QueueEffect, ...]:
        """Give all tasks back and release all sources, as the target will not serve."""
        self.phase = MOVES.advance(self.phase, QueuePhase.ABORTED)
        back = tuple(GiveBack(entry.task.id, entry.done, reason) for entry in self._entries)
        self._entries, self._last = [], ()
        return *back, *self._answer()

    def check_invariants(self) -> None:
        """Check that no layer runs before its block, and no pull waits for what could leave. Raises InvariantBroken."""
        check(self._broken())

    def _may_run(self, entry: QueuedTask) -> bool:
        loaded = entry.done < self.loaded
        return loaded and (self.phase is not QueuePhase.LIVE or self._rule.runs(entry, self.layers))

    def _leaving(self) -> list[QueuedTask]:
        """The tasks that sources may have, in the order in which they leave."""
        match self.phase:
            case QueuePhase.LIVE:
                return [entry for entry in self._entries if self._rule.leaves(entry)]
            case QueuePhase.DRAINING:
                return self._entries[1:]
            case QueuePhase.PLAIN | QueuePhase.ABORTED:
                return []

    def _shares(self) -> list[tuple[str, tuple[QueuedTask, ...]]]:
        """Assign tasks to pulls: the first source that asked gets the first in order, and so on."""
        leaving, shares = self._leaving(), []
        for source, budget in self._pulls.items():
            share = budget.batch(self._alike(leaving))
            shares.append((source, share))
            leaving = leaving[len(share) :]
        return shares

    def _alike(self, leaving: list[QueuedTask]) -> Iterator[QueuedTask]:
        """Those at the front that are all being run, or of which none is."""
        return takewhile(lambda entry: (entry in self._running) is (leaving[0] in self._running), leaving)

    def _answer(self) -> Iterator[QueueEffect]:
        """Answer the pulls that can be. A source that is to get what is being run waits."""
        shares = self._shares()
        if self.phase is QueuePhase.DRAINING and not all(share for _, share in shares):
            self.phase = MOVES.advance(self.phase, QueuePhase.PLAIN)
        for source, share in shares:
            if not share or share[0] in self._running:
                continue
            del self._pulls[source]
            for entry in share:
                self._take(entry)
                yield GiveTask(entry.task.id, source, entry.done, "it is the earliest that may leave")
        if self.phase in (QueuePhase.PLAIN, QueuePhase.ABORTED):
            for source in tuple(self._pulls):
                del self._pulls[source]
                yield Release(source, f"the target is {self.phase}")

    def _take(self, entry: QueuedTask) -> None:
        self._entries.remove(entry)
        self._last = tuple(other for other in self._last if other is not entry)

    def _broken(self) -> Iterator[str]:
        if self._entries != sorted(self._entries, key=lambda entry: entry.task.order):
            yield "queue: not in order"
        for entry in self._entries:
            if not 0 <= entry.done < self.layers:
                yield f"queue: {entry.done} of {self.layers} layers of task {entry.task.id} are done"
        if len({entry.done for entry in self._running}) > 1:
            yield f"queue: tasks {[entry.task.id for entry in self._running]} run together, at different layers"
        for entry in self._running:
            if entry.done >= self.loaded:
                yield f"queue: layer {entry.done} of task {entry.task.id} runs, {self.loaded} are loaded"
        for source, share in self._shares():
            if share and share[0] not in self._running:
                yield f"queue: {source} waits, and could have task {share[0].task.id}"
        if self._pulls and self.phase in (QueuePhase.PLAIN, QueuePhase.ABORTED):
            yield f"queue: {list(self._pulls)} wait for a target that is {self.phase}"


def _why(first: QueuedTask, last: tuple[QueuedTask, ...]) -> str:
    if first in last:
        return "its next layer is loaded"
    return "a block that it waited for arrived" if first.parked else "it is the earliest whose next layer is loaded"
