"""What all parts of live scaling at one worker run with."""

from dataclasses import dataclass
from typing import Self

from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.held import HeldInstance
from livescale.services.worker.instance.metrics import LiveCounts
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.tensor_parallel.group import TensorParallelGroup


@dataclass(frozen=True)
class LiveContext:
    """What gives requests to other workers and takes theirs, whatever model is served.

    Requests are those of `instance`; the ranks of `group` compute them together.
    """

    worker: WorkerContext
    instance: HeldInstance
    group: TensorParallelGroup
    counts: LiveCounts

    @classmethod
    def of(cls, worker: WorkerContext, instance: HeldInstance, group: TensorParallelGroup) -> Self:
        """Make the context of a worker, whose process counts what moves."""
        return cls(worker, instance, group, LiveCounts(worker.world.telemetry))

    @property
    def serving(self) -> ServingLoop:
        """The loop of steps that requests leave and join as they move."""
        return self.instance.serving
