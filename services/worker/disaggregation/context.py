"""What both ends of a KV transfer run with: the channel between them, and what they count."""

from dataclasses import dataclass
from functools import cached_property

from livescale.services.worker.instance.context import FIRST_CHANNEL as FIRST_HANDOFF
from livescale.services.worker.instance.context import Channel, HandOffTickets, WorkerContext
from livescale.services.worker.instance.held import HeldInstance
from livescale.services.worker.instance.lifecycle import WorkerState
from livescale.services.worker.instance.loading import KvFirst, Loading
from livescale.services.worker.instance.serving import ServingLoop
from livescale.shared.messages.disaggregation import Reserve
from livescale.shared.messages.transfers import Node
from livescale.shared.process.telemetry import Telemetry

# Channels of KV transfers are numbered above those of hand-offs and of pipelines.
FIRST_CHANNEL = 1 << 26
FAILURES = ("refused", "broken", "late", "lost")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class KvTransferCounts:
    """What a worker counts of KV transfers, at the end that prefills unless another is named."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.seconds = telemetry.histogram(
            "livescale_kv_transfer_seconds",
            "Transfer of a request's KV from prefill to decode: the whole of it, and the part after the first token",
            ["part"],
            [("whole",), ("exposed",)],
            buckets=SECONDS,
        )
        self.sent = telemetry.counter(
            "livescale_kv_transfer_bytes_total", "Bytes of KV sent to the workers that decode"
        )
        self.taken = telemetry.counter(
            "livescale_kv_transfers_total", "Requests that were prefilled here and taken over by another worker"
        )
        self.moved = telemetry.counter(
            "livescale_kv_moves_total",
            "Requests taken over by another worker after they were decoded here, as when this worker drained",
        )
        self.failures = telemetry.counter(
            "livescale_kv_transfer_failures_total",
            "Transfers that failed, by reason; the request is offered again, or decoded where it was prefilled",
            ["reason"],
            [(reason,) for reason in FAILURES],
        )
        self.reserved = telemetry.gauge(
            "livescale_kv_reserved_blocks", "KV blocks that are kept here for requests that others prefill"
        )


@dataclass(frozen=True)
class KvContext:
    """What gives requests to workers that decode, and takes them from those that prefill, whatever model is served.

    Parameters yield to what is sent, by `kv_first`.
    """

    worker: WorkerContext
    instance: HeldInstance
    counts: KvTransferCounts
    kv_first: KvFirst

    @cached_property
    def tickets(self) -> HandOffTickets:
        """What transfers from here are named by, and their requests in the exports of steps."""
        return HandOffTickets(self.worker.clock.wall())

    @property
    def serving(self) -> ServingLoop:
        """The serving loop that requests leave for another worker, or join from one."""
        return self.instance.serving

    @property
    def served(self) -> Loading | None:
        """The model that is served whole by this worker alone; None where there is none."""
        loading, state = self.instance.loading, self.instance.lifecycle.state
        serves = state in (WorkerState.SERVING, WorkerState.DRAINING)
        return loading if serves and loading is not None and loading.manifest.shards == 1 else None

    @property
    def has_ranks(self) -> bool:
        """Whether the model is served by several workers together, of which this is one."""
        loading = self.instance.loading
        return loading is not None and loading.manifest.shards > 1

    def channel_to(self, decode: str, address: bytes, asked: Reserve) -> Channel:
        """The way to the worker that decodes, for the transfer that was `asked` for."""
        return self._channel(Node(id=decode, place="worker", address=address), asked, self.worker.me < decode)

    def channel_from(self, asked: Reserve) -> Channel:
        """The way to the worker that prefills, for the transfer that it `asked` for."""
        return self._channel(asked.prefill, asked, asked.prefill.id < self.worker.me)

    def _channel(self, other: Node, asked: Reserve, in_order: bool) -> Channel:
        """Two workers may send to each other under the same ticket: `in_order` says which of them prefills."""
        number = FIRST_CHANNEL - FIRST_HANDOFF + 2 * asked.ticket + in_order
        return self.worker.channel(other, number, asked.secret)
