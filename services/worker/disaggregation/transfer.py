"""One request's KV as it leaves the worker that prefills it: what is to be sent, and whose the request is. Pure."""

from collections import deque
from enum import StrEnum

from livescale.services.worker.disaggregation.pieces import (
    KvRegion,
    PieceGroup,
    StagedPiece,
    cut,
    grouped,
    layer_pieces,
)
from livescale.shared.policy.state_machine import StateMachine


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

    def step(self, start: int, stop: int, room_bytes: int) -> tuple[range, ...]:
        """Note that a step begins that computes these positions, and return the pieces that leave during it.

        There are none where they have not all room in `room_bytes`: then they stay in the cache. Nor are there any once
        all positions were reached.
        """
        if self._reached == self.positions:
            return ()
        stop = min(stop, self.positions)
        self._defer(self._reached, start)
        self._reached = max(stop, self._reached)
        size_bytes = (stop - start) * self._layer_bytes * self.layers
        if start >= stop or not self._by_layer or size_bytes > room_bytes:
            self._defer(start, stop)
            return ()
        pieces = layer_pieces(self.layers, (stop - start) * self._layer_bytes)
        self._groups.extend(grouped(start, stop, pieces, leaves=True))
        self.staged_bytes += size_bytes
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
