"""A request whose KV goes to the worker that is to decode it, as the worker that prefills it keeps it. Pure."""

from dataclasses import dataclass

from livescale.services.worker.disaggregation.pieces import KvRegion
from livescale.services.worker.disaggregation.transfer import KvTransfer
from livescale.services.worker.scheduling.batch import KvExport
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import Sequence
from livescale.shared.messages.disaggregation import Reserve


@dataclass(eq=False)
class OutgoingKv:
    """A request on its way to `decode`, of a model of this `version`.

    One that `moves` was taken by this worker for itself, and is decoded here until its KV is there. `number` names a
    request among those of this worker, in the exports of steps. `asked` is what blocks were last asked for with; None
    once they are given up. `is_reserved` once that was answered. `began` is when the first step did, or the move;
    `stopped` when it was noticed that no step runs the request here any more.
    """

    decode: str
    scheduler: Scheduler
    sequence: Sequence
    transfer: KvTransfer
    version: str
    moves: bool = False
    number: int = -1
    asked: Reserve | None = None
    is_reserved: bool = False
    began: float = 0.0
    stopped: float | None = None
    sent_bytes: int = 0
    is_lost: bool = False
    is_late: bool = False

    @property
    def request_id(self) -> str:
        return self.sequence.request_id

    def is_open(self, served: Scheduler | None) -> bool:
        """Whether the request may still go: it is here, it has its KV, and the decode worker lives."""
        is_here = served is self.scheduler and self.scheduler.get(self.request_id) is self.sequence
        return is_here and self.sequence.awaits_take_over and not self.is_lost

    @property
    def has_stopped(self) -> bool:
        """Whether no step runs the request here any more: it has its first token, and is not decoded meanwhile."""
        return self.sequence.has_sampled and not (self.sequence.decodes_meanwhile or self.sequence.in_flight)

    def note_stopped(self, now: float) -> bool:
        """Note when no step runs the request here any more. Returns whether that is so."""
        if self.has_stopped and self.stopped is None:
            self.stopped = now
        return self.has_stopped

    def begin(self) -> None:
        """Have it decoded elsewhere."""
        self.sequence.awaits_take_over, self.sequence.decodes_meanwhile = True, self.moves

    def keep(self) -> None:
        """Have it decoded here, after all."""
        self.sequence.awaits_take_over = self.sequence.decodes_meanwhile = False

    def take(self, export: KvExport, layers: range, data: memoryview) -> bool:
        """Take a piece that a step has computed. Returns whether it is wanted."""
        return self.transfer.left(KvRegion(export.start, export.stop, layers), data)
