"""What all parts of live scaling at one worker run with, and what they count."""

from dataclasses import dataclass
from typing import Self

from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.held import HeldInstance
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.tensor_parallel.group import TensorParallelGroup
from livescale.shared.process.telemetry import Telemetry


class LiveCounts:
    """As a target: layers run before the model was whole. As a source: requests taken over, and what came with them."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter = telemetry.counter
        self.layers = counter(
            "livescale_worker_live_layers_total", "Layers of requests run while parameters were still arriving"
        )
        self.returned = counter(
            "livescale_worker_returned_tasks_total", "Requests that were handed to a source, and came back"
        )
        self.pulled = counter(
            "livescale_worker_pulled_tasks_total", "Requests taken over from workers that were loading"
        )
        self.pulled_layers = counter(
            "livescale_worker_pulled_layers_total", "Layers that had been run of requests when they were taken over"
        )
        self.received = counter("livescale_worker_hand_off_bytes_total", "Bytes of activations and KV taken over")
        self.seconds = telemetry.histogram(
            "livescale_worker_hand_off_seconds", "From a request's pull being answered to its activation being here"
        )
        self.kv_lost = counter(
            "livescale_worker_lost_kv_total", "Requests taken over whose KV did not come, computed again from the start"
        )


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
