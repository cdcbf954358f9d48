"""KV on its way to this worker, which is to decode its request: what has come, and what is laid down of it. Pure."""

from collections import deque
from dataclasses import dataclass, field

from livescale.services.worker.disaggregation.pieces import KvCoverage, KvRegion
from livescale.services.worker.scheduling.batch import KvSlice
from livescale.services.worker.scheduling.reservations import Reservation
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.disaggregation import Reserve


def reservation_name(prefill: str, ticket: int, request_id: str) -> str:
    """The name under which KV blocks are kept for a transfer. No request has it as its id."""
    return f"{prefill}/{ticket}/{request_id}"


@dataclass(eq=False)
class IncomingKv:
    """One transfer to this worker, for a `reservation` of `scheduler`, of a model with so many `layers`.

    `came` counts what has arrived, `laid` what is in the KV cache. It `began` at this time of the worker's clock. It
    `is_offered` while the other worker waits for an answer that the request was taken over, `is_expected` while it is
    about to ask.
    """

    asked: Reserve
    scheduler: Scheduler
    reservation: Reservation
    layers: int
    began: float
    is_offered: bool = False
    is_expected: bool = False
    received_bytes: int = 0
    staged_bytes: int = 0
    _staged: deque[tuple[KvRegion, memoryview]] = field(default_factory=deque)
    came: KvCoverage = field(init=False)
    laid: KvCoverage = field(init=False)

    def __post_init__(self) -> None:
        cached = self.reservation.cached
        self.came, self.laid = (KvCoverage(self.positions, cached, self.layers) for _ in range(2))

    @property
    def positions(self) -> int:
        """The positions that the request has before its first token."""
        return len(self.asked.request.prompt) + len(self.asked.request.generated)

    @property
    def is_whole(self) -> bool:
        """Whether the request may be taken over: all of its KV is here, and nothing writes any more."""
        return self.laid.is_full and self.reservation.wanted and not self.reservation.written

    @property
    def is_over(self) -> bool:
        """Whether the reservation was dropped, so that the request will not run here."""
        return not self.reservation.wanted

    def joins_soon(self, most_bytes: int) -> bool:
        """Whether the request joins as soon as what came is laid down, which is no more than the `most_bytes` between
        two steps."""
        comes = self.is_offered or self.is_expected
        return comes and self.came.is_full and self.staged_bytes <= most_bytes

    @property
    def next_bytes(self) -> int | None:
        """The bytes of the piece that is laid down next; None while none waits."""
        return self._staged[0][1].nbytes if self._staged else None

    def slice(self, region: KvRegion) -> KvSlice:
        """The place in the KV cache where the KV of this region goes."""
        return KvSlice(self.reservation.sequence.blocks, region.start, region.stop, region.layers)

    def stage(self, region: KvRegion, data: memoryview) -> None:
        """Keep a piece that came, until it is laid down."""
        self.came.add(region)
        self.staged_bytes += data.nbytes
        self.received_bytes += data.nbytes
        self._staged.append((region, data))

    def take(self) -> tuple[KvRegion, memoryview]:
        """Take the next piece, to be laid down. Raises IndexError where none waits."""
        region, data = self._staged.popleft()
        self.staged_bytes -= data.nbytes
        return region, data
