"""What the address of a UCX link says: what its process keeps parameters in, and UCX's own address, with a checksum."""

import xxhash

from livescale.shared.links.contract import LinkError
from livescale.shared.links.link_path import MemoryKind

# What way parameters take depends on both ends' memory.
SCHEMES: dict[MemoryKind, bytes] = {"host": b"ucx:host:", "pinned": b"ucx:pinned:", "cuda": b"ucx:cuda:"}
DIGEST_BYTES = 8


def link_address(worker: bytes, memory: MemoryKind) -> bytes:
    """`worker`: UCX's own."""
    return SCHEMES[memory] + xxhash.xxh3_64_digest(worker) + worker


def worker_address(address: bytes) -> bytes:
    """The bare UCX address; UCX would read a damaged one without checks. Raises LinkError."""
    rest = address.removeprefix(SCHEMES[memory_at(address)])
    digest, raw = rest[:DIGEST_BYTES], rest[DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(raw) != digest:
        raise LinkError(f"connect: {address[:16]!r}... is a damaged address")
    return raw


def memory_at(address: bytes) -> MemoryKind:
    """What the process at this address keeps parameters in. Raises LinkError."""
    for memory, scheme in SCHEMES.items():
        if address.startswith(scheme):
            return memory
    raise LinkError(f"connect: {address[:16]!r}... is not the address of a UCX link")
