"""How pieces of KV and the headers that tell of them are sent and received, and how damage to them is seen."""

import struct
from collections.abc import Sequence
from itertools import pairwise

from livescale.services.worker.disaggregation.pieces import MOST_TOLD, KvRegion
from livescale.services.worker.instance.context import TAG_BITS
from livescale.services.worker.scheduling.batch import SPARE_BYTES
from livescale.shared.links.contract import Buffer, LinkError, Peer, checksum

HEADER, DATA = 4, 5  # what a message on the channel is, in its tag; 2 and 3 were those of an earlier release
PIECE_HEADER = struct.Struct(f">QQ{MOST_TOLD + 1}IQ")  # positions, the layers between which pieces are cut, digest
PIECE_SECONDS = 10.0  # within which a piece moves, or the transfer is given up
SILENT_SECONDS = 60.0  # between two pieces: a long prompt may be computed beside many others


async def send_header(peer: Peer, number: int, region: KvRegion, told: Sequence[range]) -> None:
    """Tell the other end of the pieces from `number` on, which are of the positions of `region`. Raises LinkError."""
    header = memoryview(pack_header(region.start, region.stop, told))
    await peer.send(_tag(HEADER, number), Buffer(header), timeout=PIECE_SECONDS)


async def send_piece(peer: Peer, number: int, data: memoryview) -> int:
    """Send the piece with this number, whose digest stands behind it. Returns its bytes. Raises LinkError."""
    await peer.send(_tag(DATA, number), Buffer(data), timeout=PIECE_SECONDS)
    return data.nbytes - SPARE_BYTES


async def receive_header(peer: Peer, number: int, positions: int, layers: int) -> list[KvRegion]:
    """What the pieces from `number` on are. Raises LinkError, and ValueError as `unpack_header`."""
    header = memoryview(bytearray(PIECE_HEADER.size))
    await peer.receive(_tag(HEADER, number), Buffer(header), timeout=SILENT_SECONDS)
    return unpack_header(header, positions, layers)


async def receive_piece(peer: Peer, number: int, data: memoryview) -> memoryview:
    """Receive the piece with this number into `data`, and return it without its digest. Raises LinkError, also where it
    is damaged."""
    await peer.receive(_tag(DATA, number), Buffer(data), timeout=SILENT_SECONDS)
    if not has_digest(data):
        raise LinkError(f"a piece of {data.nbytes - SPARE_BYTES} bytes arrived damaged, its checksum is another")
    return data[:-SPARE_BYTES]


def _tag(kind: int, number: int) -> int:
    """The tag under which a piece is sent, or the header that tells of this piece and the next ones."""
    return kind << TAG_BITS | number


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
