"""A request whose KV goes to the worker that is to decode it, as the worker that prefills it keeps it: what is to be
sent, whose the request is, and at which rate KV leaves. Pure; times are seconds of one monotonic clock."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from livescale.services.worker.disaggregation.pieces import (
    LEAST_PIECE_BYTES,
    SLOW_LINK,
    KvRegion,
    PieceGroup,
    StagedPiece,
    cut,
    grouped,
    layer_pieces,
)
from livescale.services.worker.scheduling.batch import KvExport, KvSlice
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import Sequence
from livescale.shared.messages.disaggregation import Reserve
from livescale.shared.policy.invariants import StateMachine


class KvTransferState(StrEnum):
    """The states of a transfer.

    `expected`: no step of the request has begun. `asking`: for KV blocks at the decode worker. `sending`: it has blocks
    there. `offered`: everything was sent, and the decode worker is asked to go on. Then it is `taken`, or `kept`: the
    request goes on here. `over`: the request has ended.
    """

    EXPECTED = "expected"
    ASKING = "asking"
    SENDING = "sending"
    OFFERED = "offered"
    TAKEN = "taken"
    KEPT = "kept"
    OVER = "over"


ENDS = frozenset({KvTransferState.KEPT, KvTransferState.OVER})
MOVES = StateMachine(
    "a transfer",
    {
        KvTransferState.EXPECTED: frozenset({KvTransferState.ASKING, *ENDS}),
        KvTransferState.ASKING: frozenset({KvTransferState.ASKING, KvTransferState.SENDING, *ENDS}),
        KvTransferState.SENDING: frozenset({KvTransferState.ASKING, KvTransferState.OFFERED, *ENDS}),
        KvTransferState.OFFERED: frozenset({KvTransferState.ASKING, KvTransferState.TAKEN, *ENDS}),
        # A decode worker may say late that it has the request: both make the same tokens, and this one stops.
        KvTransferState.KEPT: frozenset({KvTransferState.TAKEN, KvTransferState.OVER}),
        KvTransferState.TAKEN: frozenset({KvTransferState.OVER}),
        KvTransferState.OVER: frozenset(),
    },
)


class KvTransfer:
    """The KV of a request with so many `positions` before its first token, in so many `layers`.

    A layer has `layer_bytes` bytes a position. Pieces leave while a step computes them, if `by_layer`, and otherwise
    once the request's prompt is computed; what finds no room then stays in the cache, and is copied out later.
    """

    def __init__(self, positions: int, layers: int, layer_bytes: int, *, by_layer: bool) -> None:
        self.state = KvTransferState.EXPECTED
        self.positions = positions
        self.staged_bytes = 0  # of pieces that leave, or have left the cache and are not sent
        self.layers = layers
        self._layer_bytes = layer_bytes
        self._by_layer = by_layer
        self._reached = 0  # positions before it are computed by the steps so far, or were in the cache
        self._groups: deque[PieceGroup] = deque()  # as they go, which is as they are computed

    @property
    def token_bytes(self) -> int:
        """The number of bytes that the KV of one position has in all layers."""
        return self.layers * self._layer_bytes

    def move(self, state: KvTransferState) -> None:
        """Go to another state. Raises ValueError for one that cannot follow."""
        self.state = MOVES.advance(self.state, state)

    def step(self, start: int, stop: int, link_pace: float = SLOW_LINK, *, leaves: bool = True) -> tuple[range, ...]:
        """Note that a step begins that computes these positions, and return the pieces that leave during it.

        The link carries `link_pace` layers while the step computes one. Unless it `leaves`, the KV stays in the cache
        for now. There are no pieces once all positions were reached.
        """
        if self._reached == self.positions:
            return ()
        stop = min(stop, self.positions)
        self._defer(self._reached, start)
        self._reached = max(stop, self._reached)
        if start >= stop or not (leaves and self._by_layer):
            self._defer(start, stop)
            return ()
        pieces = layer_pieces(self.layers, (stop - start) * self._layer_bytes, link_pace)
        self._groups.extend(grouped(start, stop, pieces, leaves=True))
        self.staged_bytes += (stop - start) * self.token_bytes
        return pieces

    def stay(self) -> None:
        """Leave everything in the cache, to be sent from there as far as it is computed."""
        self._defer(self._reached, self.positions)
        self._reached = self.positions

    def left(self, region: KvRegion, data: memoryview) -> bool:
        """Take a piece that a step has computed. Returns whether it is still wanted."""
        return any(group.add(region, data) for group in self._groups)

    def again(self) -> None:
        """Send everything once more, from the cache, to blocks that were asked for anew."""
        self._groups.clear()
        self.staged_bytes = 0
        self._defer(0, self._reached)

    def next(self, computed: int, cached: int) -> StagedPiece | None:
        """Take the next piece to send, while positions before `computed` are in the cache here, and those before
        `cached` at the other end. None while there is none."""
        if not self._by_layer and computed < self.positions:
            return None
        while self._groups and self._groups[0].stop <= cached:
            group = self._groups.popleft()
            self.staged_bytes -= sum(
                self._bytes(group.stop - group.start, layers) for layers in group.left if group.leaves
            )
        if not self._groups:
            return None
        group = self._groups[0]
        piece = group.next(computed, cached)
        if not group.left:
            self._groups.popleft()
        return piece

    def sent(self, piece: StagedPiece) -> None:
        """Note that a piece needs no memory any more."""
        region = piece.region
        self.staged_bytes -= self._bytes(region.stop - region.start, region.layers) if piece.data else 0

    @property
    def is_sent(self) -> bool:
        """Whether all positions are computed, and nothing of them is left to send."""
        return self._reached == self.positions and not self._groups

    def _defer(self, start: int, stop: int) -> None:
        if start < stop:
            self._groups.extend(cut(start, stop, self.layers, self._layer_bytes))

    def _bytes(self, positions: int, layers: range) -> int:
        return positions * len(layers) * self._layer_bytes


WEIGHT = 0.2  # of the last sample in the average


class KvSendRate:
    """Tokens a second that leave while anything is sent, whatever is sent at the same time. It is a moving average over
    samples of `LEAST_PIECE_BYTES` at least."""

    def __init__(self) -> None:
        self.tokens_per_second: float | None = None
        self._sends = 0
        self._since = 0.0
        self._busy = 0.0
        self._tokens = 0.0
        self._bytes = 0

    def begin(self, now: float) -> None:
        """Note that a piece is being sent from now on."""
        if not self._sends:
            self._since = now
        self._sends += 1

    def end(self, now: float, size_bytes: int = 0, tokens: float = 0.0) -> None:
        """Note that a piece was sent, or with nothing that it failed."""
        self._sends -= 1
        self._busy, self._since = self._busy + now - self._since, now
        self._bytes, self._tokens = self._bytes + size_bytes, self._tokens + tokens
        if self._bytes >= LEAST_PIECE_BYTES and self._busy > 0:
            rate, known = self._tokens / self._busy, self.tokens_per_second
            self.tokens_per_second = rate if known is None else known + WEIGHT * (rate - known)
            self._busy, self._tokens, self._bytes = 0.0, 0.0, 0


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
        """Have the request wait for its decode worker after its first token; one that moves is decoded meanwhile."""
        self.sequence.awaits_take_over, self.sequence.decodes_meanwhile = True, self.moves

    def keep(self) -> None:
        """Have the request decoded here, as nothing came of the transfer."""
        self.sequence.awaits_take_over = self.sequence.decodes_meanwhile = False

    def slice(self, region: KvRegion) -> KvSlice:
        """The place in the KV cache where the KV of this region is."""
        return KvSlice(self.sequence.blocks, region.start, region.stop, region.layers)

    def take(self, export: KvExport, layers: range, data: memoryview) -> bool:
        """Take a piece that a step has computed. Returns whether it is wanted."""
        return self.transfer.left(KvRegion(export.start, export.stop, layers), data)
