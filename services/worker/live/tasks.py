"""Tasks of a live scale, which target and source share layer by layer, and what is to be done with them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.messages.images import MOST_IMAGE_BYTES


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
class HandOver:
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


QueueEffect = RunLayer | HandOver | FinishTask | Release | GiveBack
SourceEffect = AskTarget | StopAsking
