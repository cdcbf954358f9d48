"""Addresses of UCX links: the kind of memory, a checksum, the mark of the process, and the address of its UCX worker.

What way parameters take depends on both ends' memory, and on whether each can read the other's.
"""

import xxhash

from livescale.shared.links.contract import LinkError
from livescale.shared.links.link_path import MemoryKind
from livescale.shared.links.process_memory import MARK, ProcessMark, ProcessMemory

SCHEMES: dict[MemoryKind, bytes] = {"host": b"ucx:host:", "pinned": b"ucx:pinned:", "cuda": b"ucx:cuda:"}
DIGEST_BYTES = 8


def link_address(worker: bytes, memory: MemoryKind, mark: ProcessMark) -> bytes:
    """The address of a link whose UCX worker has the address `worker`, in the process with this mark."""
    rest = mark.pack() + worker
    return SCHEMES[memory] + xxhash.xxh3_64_digest(rest) + rest


def worker_address(address: bytes) -> bytes:
    """The address of the UCX worker in a link's address. Raises LinkError."""
    return _rest(address)[MARK.size :]


def memory_at(address: bytes) -> MemoryKind:
    """What the process at this address keeps parameters in. Raises LinkError."""
    for memory, scheme in SCHEMES.items():
        if address.startswith(scheme):
            return memory
    raise LinkError(f"connect: {address[:16]!r}... is not the address of a UCX link")


def readable_memory(mine: bytes, theirs: bytes) -> ProcessMemory | None:
    """The memory of the process at the address `theirs`; None where it is not copied from by the process at `mine`, nor
    the other way round. Raises LinkError."""
    if "cuda" in (memory_at(mine), memory_at(theirs)):
        return None
    return ProcessMemory.of(*(ProcessMark.unpack(_rest(address)[: MARK.size]) for address in (mine, theirs)))


def _rest(address: bytes) -> bytes:
    """All behind the checksum. Raises LinkError for a damaged address, which UCX would not notice."""
    checked = address.removeprefix(SCHEMES[memory_at(address)])
    digest, rest = checked[:DIGEST_BYTES], checked[DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(rest) != digest or len(rest) < MARK.size:
        raise LinkError(f"connect: {address[:16]!r}... is a damaged address")
    return rest
