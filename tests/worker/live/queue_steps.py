"""Queues of a target under test, and what they want done in a few words."""

from collections.abc import Iterable

from livescale.services.worker.live.policy import (
    FinishTask,
    GiveBack,
    GiveTask,
    LiveTask,
    QueueEffect,
    Release,
    RunLayer,
)
from livescale.services.worker.live.queue import LiveQueue


def queue_of(tasks: str, loaded: int = 1, layers: int = 4, **fields: object) -> LiveQueue:
    """A queue with one task for each letter, in the order of their arrival."""
    queue = LiveQueue(layers, **fields)  # type: ignore[arg-type]
    for number, id in enumerate(tasks):
        queue.append(LiveTask(id, float(number)))
    for layer in range(loaded):
        queue.block_ready(layer)
    return queue


def shown(effects: Iterable[QueueEffect]) -> list[tuple[object, ...]]:
    """Return the effects as tuples without reasons, after checking that each has one."""
    shown: list[tuple[object, ...]] = []
    for effect in effects:
        assert effect.reason
        match effect:
            case GiveTask(task, source, done):
                shown.append((GiveTask, task, source, done))
            case Release(source):
                shown.append((Release, source))
            case FinishTask(task):
                shown.append((FinishTask, task))
            case RunLayer(tasks, layer):
                shown.append((RunLayer, ",".join(tasks), layer))
            case GiveBack(task, layer):
                shown.append((type(effect), task, layer))
    return shown


def run_next(queue: LiveQueue) -> list[tuple[object, ...]]:
    """Run a layer, from its choice to its end."""
    chosen = shown(queue.next())
    queue.check_invariants()
    if chosen and chosen[-1][0] is RunLayer:
        chosen += shown(queue.layer_done())
        queue.check_invariants()
    return chosen
