"""Tasks of a live scale, which target and source share layer by layer, and what is to be done with them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from livescale.services.worker.limits import Limits


@dataclass(frozen=True)
class LiveTask:
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
class QueuedTask:
    """A task in a target's queue. `done`: the layers that were run. `parked`: the target went on without it, when its
    next layer was not to be run here."""

    task: LiveTask
    done: int = 0
    parked: bool = False


@dataclass(frozen=True)
class BatchBudget:
    """Of what runs together: so many tasks, and so many rows. One task alone may have more of them."""

    tasks: int = 1
    rows: int = 0

    def batch(self, entries: Iterable[QueuedTask]) -> tuple[QueuedTask, ...]:
        """The first of these, and those that follow while there is room: none is overtaken by one that is smaller."""
        chosen: list[QueuedTask] = []
        left = self.rows
        for entry in entries:
            left -= entry.task.rows
            if chosen and (left < 0 or len(chosen) == self.tasks):
                break
            chosen.append(entry)
        return tuple(chosen)

    def batches(self, entries: Sequence[QueuedTask]) -> Iterator[tuple[QueuedTask, ...]]:
        """All of these."""
        while entries:
            batch = self.batch(entries)
            yield batch
            entries = entries[len(batch) :]


ALONE = BatchBudget()


def batch_budget(limits: Limits, joined_rows: int) -> BatchBudget:
    """How much is worth running together, where an engine's layers take no longer up to `joined_rows` rows."""
    return BatchBudget(limits.max_num_seqs, min(joined_rows, limits.max_num_batched_tokens))


@dataclass(frozen=True)
class RunLayer:
    """Run this layer of the tasks now, together. `layer` counts from 0."""

    tasks: tuple[str, ...]
    layer: int
    reason: str


@dataclass(frozen=True)
class Park:
    """Keep the task's activation: others go on first."""

    task: str
    layer: int
    reason: str


@dataclass(frozen=True)
class HandOver:
    """Send the task to the source: whole when no layer of it was run, else its activation and KV, and the source runs
    the layers from `layers_done` on. All that are handed to a source at the same time answer the same pull."""

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
    """The target will not go on with this task: bring it elsewhere, with what was computed of it or from its start."""

    task: str
    layers_done: int
    reason: str


@dataclass(frozen=True)
class AskTarget:
    """Ask this target for a task."""

    target: str
    reason: str


@dataclass(frozen=True)
class StopAsking:
    """Ask this target for nothing any more, for now."""

    target: str
    reason: str


QueueEffect = RunLayer | Park | HandOver | FinishTask | Release | GiveBack
SourceEffect = AskTarget | StopAsking
