"""What all stages of a pipeline at one worker run with and count, and the channels to its other workers."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

from livescale.services.worker.instance.context import CONNECT_SECONDS, WorkerContext, receive, send
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.rates import TokenRate
from livescale.services.worker.tensor_parallel.group import TensorParallelGroup
from livescale.shared.links.contract import Link, LinkError, Peer
from livescale.shared.messages.model_parallel import Pipeline, StageDone
from livescale.shared.messages.parameters import Manifest
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.settings import SwitchKv

# They are numbered above those of hand-offs.
FIRST_CHANNEL = 1 << 25
CHANNELS = 1 << 24
LEAST_BYTES = 1 << 16  # of less, it is latency that is measured


async def reach(link: Link, command: Pipeline, address: bytes, purpose: str) -> Peer:
    """Open a channel to the worker at `address`, which opens one for the same `purpose`. Raises LinkError."""
    number = FIRST_CHANNEL + crc32(f"{command.id}/{purpose}".encode()) % CHANNELS
    return await link.connect(address, timeout=CONNECT_SECONDS, channel=number, secret=command.secret)


async def close(peer: Peer) -> None:
    """Close a channel, also one that is broken."""
    with suppress(LinkError):
        await peer.close()


class PipelineCounts:
    """Counts of pipelines: as the leader, steps; as any stage, the activations received and the KV filled."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter = telemetry.counter
        self.steps = counter("livescale_worker_pipeline_steps_total", "Steps of pipelines that this worker led")
        self.broken = counter(
            "livescale_worker_broken_pipelines_total", "Pipelines that this worker led and that ended before their time"
        )
        self.in_flight = telemetry.gauge(
            "livescale_worker_pipeline_in_flight", "Steps under way in the pipeline that this worker leads"
        )
        self.received = counter(
            "livescale_worker_pipeline_bytes_total", "Bytes of activations that came from the stage before"
        )
        self.filled = counter(
            "livescale_worker_pipeline_filled_tokens_total",
            "Tokens whose KV this worker computed in all layers while the pipeline still ran",
        )
        self.moved = counter(
            "livescale_worker_pipeline_moved_tokens_total",
            "Tokens whose KV this worker got from the others of a pipeline, of the layers that these ran",
        )
        self.kv_lost = counter(
            "livescale_worker_pipeline_lost_kv_total",
            "Parts of KV of other workers of a pipeline that did not come, or came damaged",
        )
        self.hop_seconds = telemetry.histogram(
            "livescale_worker_pipeline_hop_seconds", "From hearing of a batch to its activation being here"
        )


@dataclass(frozen=True)
class StageContext:
    """What is the same for all stages of one pipeline at one worker.

    `done` takes what comes out of the last stage of a pipeline that this worker leads. `is_whole` says whether this
    worker, and the ranks that it leads, have the whole model by now. `changed` has it reported how the worker gets KV
    (`switch_kv`). `link_rate` is measured in bytes a second, to or from another worker.
    """

    worker: WorkerContext
    group: TensorParallelGroup
    counts: PipelineCounts
    manifest: Manifest
    limits: SchedulerLimits
    done: Callable[[StageDone], None]
    is_whole: Callable[[], bool]
    switch_kv: SwitchKv
    changed: Callable[[], None]
    link_rate: TokenRate = field(default_factory=TokenRate)

    async def receive(self, peer: Peer, part: int, size_bytes: int) -> memoryview:
        """Receive so many bytes, and measure the link by them. Raises LinkError."""
        begun = self.worker.clock.now()
        data = await receive(peer, part, size_bytes)
        self._moved(size_bytes, self.worker.clock.now() - begun)
        return data

    async def send(self, peer: Peer, part: int, data: memoryview) -> None:
        """Send data, and measure the link by it. Raises LinkError."""
        begun = self.worker.clock.now()
        await send(peer, part, data)
        self._moved(data.nbytes, self.worker.clock.now() - begun)

    def _moved(self, size_bytes: int, seconds: float) -> None:
        if size_bytes >= LEAST_BYTES:
            self.link_rate.observe(size_bytes, seconds)
