"""KV on its way from prefill to decode: how it is cut into pieces, how a piece is told, and what has come. Pure."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from livescale.services.worker.scheduling.batch import NO_BYTES

# A piece costs the loop half a millisecond, so that small ones are not worth it; large ones hold a step up.
LEAST_PIECE_BYTES = 256 << 10
MOST_PIECE_BYTES = 4 << 20
MOST_POSITIONS = 512  # of a piece that no step brings

HEADER = struct.Struct(">QQIIQQ")  # positions, layers, size in bytes, digest


@dataclass(frozen=True)
class KvRegion:
    """Positions `start` to `stop` - 1 of a request, in `layers`."""

    start: int
    stop: int
    layers: range

    def from_position(self, start: int) -> "KvRegion":
        """What is left of the region from this position on."""
        return KvRegion(max(self.start, start), self.stop, self.layers)


@dataclass(frozen=True, eq=False)
class StagedPiece:
    """A piece that is to be sent. Without `data` its bytes are still to be copied out of the cache."""

    region: KvRegion
    data: memoryview = NO_BYTES


def layer_pieces(layers: int, layer_bytes: int) -> tuple[range, ...]:
    """Cut the layers of positions that a step computes into pieces, each `layer_bytes` bytes a layer.

    The last one is a single layer, so that little is left to send when the step ends. Each of the others has
    `LEAST_PIECE_BYTES` at least, and where that allows it no more layers than come after it: a link that takes half as
    long as the step has carried it by the end. It has a quarter of all layers at most, so that sending begins early,
    and `MOST_PIECE_BYTES`. What is less than two pieces stays one.
    """
    least = -(-LEAST_PIECE_BYTES // layer_bytes)
    if layers <= least:
        return (range(layers),)
    most = max(least, min(-(-layers // 4), MOST_PIECE_BYTES // layer_bytes))
    bounds = [layers, layers - 1]
    while bounds[-1] > 0:
        first = bounds[-1] - max(least, min(layers - bounds[-1], most))
        bounds.append(first if first >= least else 0)
    return tuple(range(first, stop) for first, stop in pairwise(reversed(bounds)))


def cut(start: int, stop: int, layers: int, layer_bytes: int) -> Iterator[KvRegion]:
    """Cut positions that are in the cache into regions of at most `MOST_PIECE_BYTES` bytes, or one layer.

    A layer has `layer_bytes` bytes a position.
    """
    for first in range(start, stop, MOST_POSITIONS):
        last = min(first + MOST_POSITIONS, stop)
        each = max(1, MOST_PIECE_BYTES // ((last - first) * layer_bytes))
        for layer in range(0, layers, each):
            yield KvRegion(first, last, range(layer, min(layer + each, layers)))


def pack_header(region: KvRegion, size_bytes: int, digest: int) -> bytes:
    """The bytes that tell the other end what the next piece is; `unpack_header` reads them."""
    return HEADER.pack(region.start, region.stop, region.layers.start, region.layers.stop, size_bytes, digest)


def unpack_header(data: bytes | memoryview, positions: int, layers: int) -> tuple[KvRegion, int, int]:
    """What the next piece is, its size in bytes, and its digest. Raises ValueError where the request has no such
    positions, or the model no such layers."""
    start, stop, first, last, size_bytes, digest = HEADER.unpack(data)
    if not (start < stop <= positions and first < last <= layers):
        raise ValueError(f"positions {start} to {stop} of {positions}, layers {first} to {last} of {layers}")
    return KvRegion(start, stop, range(first, last)), size_bytes, digest


class KvCoverage:
    """Which positions of a request have come, in each layer. Those before `cached` are here anyhow."""

    def __init__(self, positions: int, cached: int, layers: int) -> None:
        self._all = (1 << positions) - 1
        self._came = [(1 << cached) - 1] * layers

    def add(self, region: KvRegion) -> None:
        """Note that the positions of a region have come in its layers."""
        bits = (1 << region.stop) - (1 << region.start)
        for layer in region.layers:
            self._came[layer] |= bits

    @property
    def is_full(self) -> bool:
        """Whether every position has come in every layer."""
        return all(came == self._all for came in self._came)
