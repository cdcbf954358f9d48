"""The queue of a target whose parameters are still arriving (BlitzScale 5.2, Fig. 16). Pure."""

from bisect import insort
from collections.abc import Iterator
from enum import StrEnum

from services.worker.zigzag.effects import Finish, GiveBack, HandOver, Park, QueueEffect, Release, Run
from services.worker.zigzag.rules import ZIGZAG, Bound, Rule
from services.worker.zigzag.tasks import Entry, Task
from shared.invariants import check
from shared.moves import Moves


class Phase(StrEnum):
    """live: blocks are missing. draining: all are there, and sources still take tasks. plain: served alone."""

    LIVE = "live"
    DRAINING = "draining"
    PLAIN = "plain"
    ABORTED = "aborted"


MOVES = Moves(
    "a target's queue",
    {
        Phase.LIVE: frozenset({Phase.DRAINING, Phase.ABORTED}),
        Phase.DRAINING: frozenset({Phase.PLAIN, Phase.ABORTED}),
        Phase.PLAIN: frozenset({Phase.ABORTED}),
        Phase.ABORTED: frozenset(),
    },
)


class LiveQueue:
    """Tasks in order of arrival. The target runs one layer at a time, of the earliest task whose next layer is loaded;
    sources pull the earliest task, with the layers that were done of it.

    A layer is what is loaded as a block and run as a step: the embedding goes with the first, and the head counts as
    one of its own where it is loaded last. Where things happen at the same time, the order of calls is `block_ready`,
    `layer_done`, `pull`, `next`, `append`: a pull beats the worker, and the worker beats what is new.

    A task whose layer is being run leaves when that is done: the pull that is its turn waits for it, as earlier tasks
    go first. Once the last block is there, the first task is finished here, and others still leave; the first pull
    that finds nothing is told `Release`, and from then on the target is an instance like any other.
    """

    def __init__(self, layers: int, began: float = 0.0, rule: Rule = ZIGZAG, bound: Bound | None = None) -> None:
        """`began`: when the first block was ready, from which on `bound` counts. Without it, any number may come."""
        self.layers = layers
        self.loaded = 0  # from the first on without a gap
        self.phase = Phase.LIVE
        self._began, self._rule, self._bound = began, rule, bound
        self._blocks: set[int] = set()
        self._entries: list[Entry] = []
        self._running: Entry | None = None
        self._last: Entry | None = None  # what was run before, and is still here
        self._pulls: dict[str, None] = {}  # sources, in the order in which they asked

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, task_id: str) -> bool:
        return any(entry.task.id == task_id for entry in self._entries)

    @property
    def unbegun(self) -> tuple[Task, ...]:
        """Those of which no layer is run, in order."""
        return tuple(entry.task for entry in self._entries if not entry.done and entry is not self._running)

    def go_by(self, rule: Rule) -> tuple[QueueEffect, ...]:
        """Another rule from here on."""
        self._rule = rule
        return tuple(self._answer())

    @property
    def work(self) -> float:
        """How long the target would take for what is here, without the layer that is being run."""
        under_way = {self._running}
        return sum(entry.task.weight * (self.layers - entry.done - (entry in under_way)) for entry in self._entries)

    def has_room(self, now: float) -> bool:
        """Whether another task is wanted; one that comes back from elsewhere is taken regardless."""
        return self._bound is None or len(self) < self._bound.at(now - self._began)

    def append(self, task: Task, done: int = 0) -> tuple[QueueEffect, ...]:
        """A task, new or with layers that another process has run. Raises ValueError for what cannot be in the queue:
        an id that is, more layers than there are, anything at all after an abort."""
        if self.phase is Phase.ABORTED:
            raise ValueError(f"task {task.id}: the queue was aborted")
        if task.id in self:
            raise ValueError(f"task {task.id} is here already")
        if not 0 <= done < self.layers:
            raise ValueError(f"task {task.id}: {done} layers are done, of {self.layers}")
        insort(self._entries, Entry(task, done), key=lambda entry: entry.task.order)
        return tuple(self._answer())

    def block_ready(self, layer: int) -> tuple[QueueEffect, ...]:
        """A layer's block is verified, in whatever order. Raises ValueError for a layer that the model lacks."""
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer {layer} is none of {self.layers}")
        self._blocks.add(layer)
        while self.loaded in self._blocks:
            self.loaded += 1
        if self.loaded == self.layers and self.phase is Phase.LIVE:
            self.phase = MOVES.advance(self.phase, Phase.DRAINING)
        return tuple(self._answer())

    def next(self) -> tuple[QueueEffect, ...]:
        """What the worker, which is free, does next: ends with a `Run` unless there is nothing to run."""
        if self._running is not None:
            raise ValueError(f"a layer of task {self._running.task.id} is being run")
        chosen = next((entry for entry in self._entries if self._may_run(entry)), None)
        last, self._last = self._last, chosen
        if chosen is None:
            return ()
        run = Run(chosen.task.id, chosen.done, _why(chosen, last))
        self._running, chosen.parked = chosen, False
        if last is None or last is chosen or last.parked:
            return (run,)
        return Park(last.task.id, last.done, f"a block of task {chosen.task.id}, which is earlier, arrived"), run

    def layer_done(self, task_id: str) -> tuple[QueueEffect, ...]:
        """The layer of the last `Run` is done. Raises ValueError when it was none of this task's."""
        entry = self._running
        if entry is None or entry.task.id != task_id:
            raise ValueError(f"no layer of task {task_id} is being run")
        self._running = None
        if entry not in self._entries:
            return tuple(self._answer())  # it was removed meanwhile
        entry.done += 1
        if entry.done == self.layers:
            self._take(entry)
            return Finish(task_id, "all layers were run here"), *self._answer()
        entry.parked = not self._may_run(entry)
        left = tuple(self._answer())
        if entry.parked and entry in self._entries:
            return *left, Park(task_id, entry.done, "its next layer is not to be run here yet")
        return left

    def pull(self, source: str) -> tuple[QueueEffect, ...]:
        """The source has nothing to do. Its pull stays until it is answered or withdrawn; asked again, it is one."""
        self._pulls.setdefault(source)
        return tuple(self._answer())

    def withdraw(self, source: str) -> None:
        """The source found work elsewhere, or is gone."""
        self._pulls.pop(source, None)

    def remove(self, task_id: str) -> tuple[QueueEffect, ...]:
        """Nobody waits for the task any more. One that is not here (any more) is no error."""
        for entry in [entry for entry in self._entries if entry.task.id == task_id]:
            self._take(entry)
        return tuple(self._answer())

    def abort(self, reason: str) -> tuple[QueueEffect, ...]:
        """The target will not serve: all tasks go back, and all sources are released."""
        self.phase = MOVES.advance(self.phase, Phase.ABORTED)
        back = tuple(GiveBack(entry.task.id, entry.done, reason) for entry in self._entries)
        self._entries, self._last = [], None
        return *back, *self._answer()

    def check_invariants(self) -> None:
        """No layer before its block, and no pull waits for what could leave. Raises InvariantBroken."""
        check(self._broken())

    def _may_run(self, entry: Entry) -> bool:
        loaded = entry.done < self.loaded
        return loaded and (self.phase is not Phase.LIVE or self._rule.runs(entry, self.layers))

    def _leaving(self) -> list[Entry]:
        """Those that sources may have, in order."""
        match self.phase:
            case Phase.LIVE:
                return [entry for entry in self._entries if self._rule.leaves(entry)]
            case Phase.DRAINING:
                return self._entries[1:]
            case Phase.PLAIN | Phase.ABORTED:
                return []

    def _answer(self) -> Iterator[QueueEffect]:
        """The first who asked gets the first in order, and so on; who is to get what is being run waits."""
        leaving = self._leaving()
        if self.phase is Phase.DRAINING and len(leaving) < len(self._pulls):
            self.phase = MOVES.advance(self.phase, Phase.PLAIN)
        for source, entry in zip(tuple(self._pulls), leaving, strict=False):
            if entry is not self._running:
                del self._pulls[source]
                self._take(entry)
                yield HandOver(entry.task.id, source, entry.done, "it is the earliest that may leave")
        if self.phase in (Phase.PLAIN, Phase.ABORTED):
            for source in tuple(self._pulls):
                del self._pulls[source]
                yield Release(source, f"the target is {self.phase}")

    def _take(self, entry: Entry) -> None:
        self._entries.remove(entry)
        if self._last is entry:
            self._last = None

    def _broken(self) -> Iterator[str]:
        if self._entries != sorted(self._entries, key=lambda entry: entry.task.order):
            yield "queue: not in order"
        for entry in self._entries:
            if not 0 <= entry.done < self.layers:
                yield f"queue: {entry.done} of {self.layers} layers of task {entry.task.id} are done"
        if self._running is not None and self._running.done >= self.loaded:
            yield f"queue: layer {self._running.done} of task {self._running.task.id} runs, {self.loaded} are loaded"
        for source, entry in zip(self._pulls, self._leaving(), strict=False):
            if entry is not self._running:
                yield f"queue: {source} waits, and could have task {entry.task.id}"
        if self._pulls and self.phase in (Phase.PLAIN, Phase.ABORTED):
            yield f"queue: {list(self._pulls)} wait for a target that is {self.phase}"


def _why(chosen: Entry, last: Entry | None) -> str:
    if chosen is last:
        return "its next layer is loaded"
    return "a block that it waited for arrived" if chosen.parked else "it is the earliest whose next layer is loaded"
