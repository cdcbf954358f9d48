"""How pieces of KV are told to the other end, and how it sees that one is damaged."""

import struct
from collections.abc import Sequence
from itertools import pairwise

from livescale.services.worker.disaggregation.pieces import MOST_TOLD, KvRegion
from livescale.services.worker.scheduling.batch import SPARE_BYTES
from livescale.shared.links.contract import checksum

PIECE_HEADER = struct.Struct(f">QQ{MOST_TOLD + 1}IQ")  # positions, the layers between which pieces are cut, digest


def pack_header(start: int, stop: int, pieces: Sequence[range]) -> bytearray:
    """The bytes that tell the other end what the next pieces are; `unpack_header` reads them."""
    bounds = [pieces[0].start, *(layers.stop for layers in pieces)]
    bounds += bounds[-1:] * (MOST_TOLD + 1 - len(bounds))
    header = bytearray(PIECE_HEADER.pack(start, stop, *bounds, 0))
    write_digest(memoryview(header))
    return header


def unpack_header(header: memoryview, positions: int, layers: int) -> list[KvRegion]:
    """What the next pieces are. Raises ValueError where the request has no such positions, or the model no such layers,
    and for a damaged header."""
    if not has_digest(header):
        raise ValueError("a header arrived damaged, its checksum is another")
    start, stop, *bounds, _ = PIECE_HEADER.unpack(header)
    if not (start < stop <= positions and bounds[0] < bounds[-1] <= layers and bounds == sorted(bounds)):
        raise ValueError(f"positions {start} to {stop} of {positions}, layers cut at {bounds} of {layers}")
    return [KvRegion(start, stop, range(first, last)) for first, last in pairwise(bounds) if first < last]


def write_digest(data: memoryview) -> None:
    """Write the digest of all bytes but the last ones there."""
    data[-SPARE_BYTES:] = _digest(data)


def has_digest(data: memoryview) -> bool:
    """Whether the last bytes are the digest of those before them."""
    return bytes(data[-SPARE_BYTES:]) == _digest(data)


def _digest(data: memoryview) -> bytes:
    return checksum(data[:-SPARE_BYTES]).to_bytes(SPARE_BYTES, "big")
