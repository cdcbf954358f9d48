"""KV on its way from prefill to decode: how it is cut into pieces, and what has come. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from livescale.services.worker.scheduling.batch import NO_BYTES

# A piece costs the loop half a millisecond, so that small ones are not worth it; large ones hold a step up.
LEAST_PIECE_BYTES = 256 << 10
MOST_PIECE_BYTES = 4 << 20
MOST_POSITIONS = 512  # of a piece that no step brings
SLOW_LINK = 2.0  # layers that it carries while a step computes one

MOST_TOLD = 16  # pieces, by one header


@dataclass(frozen=True)
class KvRegion:
    """Positions `start` to `stop` - 1 of a request, in `layers`."""

    start: int
    stop: int
    layers: range


@dataclass(frozen=True, eq=False)
class StagedPiece:
    """A piece that is to be sent. Without `data` its bytes are still to be copied out of the cache; with it there is
    room for a digest behind them.

    `told` are the layers of this piece and of those that go next, with the first of a group.
    """

    region: KvRegion
    data: memoryview = NO_BYTES
    told: Sequence[range] = ()


class PieceGroup:
    """Pieces of the same positions, which go one after the other: one header tells of them all.

    Where `leaves`, a step computes them and each has its bytes once it came; else they are copied out of the cache.
    """

    def __init__(self, start: int, stop: int, layers: Sequence[range], *, leaves: bool) -> None:
        self.start = start
        self.stop = stop
        self.leaves = leaves
        self._layers = layers
        self._next = 0
        self._came: dict[range, memoryview] = {}

    @property
    def left(self) -> Sequence[range]:
        """The layers of the pieces that have not gone."""
        return self._layers[self._next :]

    def add(self, region: KvRegion, data: memoryview) -> bool:
        """Take a piece that a step has computed. Returns whether it is one of these."""
        is_mine = self.leaves and (region.start, region.stop) == (self.start, self.stop) and region.layers in self.left
        if is_mine:
            self._came[region.layers] = data
        return is_mine

    def next(self, computed: int, cached: int) -> StagedPiece | None:
        """Take the next piece, without those of its positions that are `cached` at the other end where it has no bytes.
        None while it is not computed."""
        told, layers = () if self._next else self._layers, self._layers[self._next]
        is_here = layers in self._came if self.leaves else self.stop <= computed
        if not is_here:
            return None
        self._next += 1
        start = self.start if self.leaves else max(self.start, cached)
        return StagedPiece(KvRegion(start, self.stop, layers), self._came.pop(layers, NO_BYTES), told)


def layer_pieces(layers: int, layer_bytes: int, link_pace: float = SLOW_LINK) -> tuple[range, ...]:
    """Cut the layers of positions that a step computes into pieces, each `layer_bytes` bytes a layer.

    `link_pace` says how many layers a link carries while the step computes one; a link that was not measured, or is
    slower, counts as `SLOW_LINK`. The last piece is a single layer, so that little is left to send when the step ends.
    Each of the others has `LEAST_PIECE_BYTES` at least and, where that allows it, so many layers that half of the
    link's pace has carried them while those after them are computed. So a fast link has few pieces, as each takes time
    from the step. The largest one is a quarter of all layers on a slow link, so that sending begins early, and has
    `MOST_PIECE_BYTES`. What is less than two pieces stays one.
    """
    least, faster = -(-LEAST_PIECE_BYTES // layer_bytes), max(1.0, link_pace / SLOW_LINK)
    if layers <= least:
        return (range(layers),)
    most = max(least, min(ceil(faster * layers / 4), MOST_PIECE_BYTES // layer_bytes))
    bounds = [layers, layers - 1]
    while bounds[-1] > 0:
        first = bounds[-1] - max(least, min(int(faster * (layers - bounds[-1])), most))
        bounds.append(first if first >= least else 0)
    return tuple(range(first, stop) for first, stop in pairwise(reversed(bounds)))


def grouped(start: int, stop: int, pieces: Sequence[range], *, leaves: bool) -> Iterator[PieceGroup]:
    """Group pieces of the same positions, as many as one header tells of."""
    for first in range(0, len(pieces), MOST_TOLD):
        yield PieceGroup(start, stop, pieces[first : first + MOST_TOLD], leaves=leaves)


def cut(start: int, stop: int, layers: int, layer_bytes: int) -> Iterator[PieceGroup]:
    """Cut positions that are in the cache into pieces of at most `MOST_PIECE_BYTES` bytes, or one layer.

    A layer has `layer_bytes` bytes a position.
    """
    for first in range(start, stop, MOST_POSITIONS):
        last = min(first + MOST_POSITIONS, stop)
        each = max(1, MOST_PIECE_BYTES // ((last - first) * layer_bytes))
        pieces = [range(layer, min(layer + each, layers)) for layer in range(0, layers, each)]
        yield from grouped(first, last, pieces, leaves=False)


class KvCoverage:
    """Which positions of a request have come, in each layer. Those before `cached` are here anyhow."""

    def __init__(self, positions: int, cached: int, layers: int) -> None:
        self._all = (1 << positions) - 1
        self._came = [(1 << cached) - 1] * layers
        self._lacking = 0 if self._came == [self._all] * layers else layers  # layers that are not whole

    def add(self, region: KvRegion) -> None:
        """Note that the positions of a region have come in its layers."""
        bits = (1 << region.stop) - (1 << region.start)
        for layer in region.layers:
            if self._came[layer] != self._all:
                self._came[layer] |= bits
                self._lacking -= self._came[layer] == self._all

    @property
    def is_full(self) -> bool:
        """Whether every position has come in every layer."""
        return not self._lacking
