"""What a target's queue, and a source that pulls from it, want done."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
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
class Finish:
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
class Pull:
    """Ask this target for a task."""

    target: str
    reason: str


@dataclass(frozen=True)
class Withdraw:
    """Ask this target for nothing any more, for now."""

    target: str
    reason: str


QueueEffect = Run | Park | HandOver | Finish | Release | GiveBack
SourceEffect = Pull | Withdraw
