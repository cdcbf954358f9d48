"""Proofs that a process takes part in a plan: hashes under the plan's secret, which comes over the bus."""

import asyncio
import hmac
import struct
from hashlib import blake2b

End = tuple[bytes, int]  # the address of a process, and a channel to it

PROOF_BYTES = 32
HELLO = struct.Struct(">QHH")
MESSAGE = struct.Struct(">QQQQ")


def proof(secret: bytes, channel: int, dialler: bytes, dialled: bytes) -> bytes:
    """The proof that a dialler sends in its hello. It is of no use on another channel, or between other processes."""
    said, key = HELLO.pack(channel, len(dialler), len(dialled)) + dialler + dialled, hash_key(secret)
    return blake2b(said, key=key, digest_size=PROOF_BYTES, person=b"hello").digest()


def message_tag(key: bytes, channel: int, sender: int, tag: int, size_bytes: int) -> int:
    """A tag of 64 bits that a process without the key cannot guess. `sender` is the hash of its address."""
    message = MESSAGE.pack(channel, sender, tag, size_bytes)
    return int.from_bytes(blake2b(message, key=key, digest_size=8, person=b"message").digest())


def is_proof(given: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(given, expected)


def hash_key(secret: bytes) -> bytes:
    """The key for a channel's tags, derived from its secret; it costs a hash, so derive it once a channel."""
    return blake2b(secret, digest_size=32).digest()  # a key of BLAKE2 has at most 64 bytes


class Tickets:
    """The secrets of the channels that this process takes part in, and the tasks that wait for one."""

    def __init__(self) -> None:
        self._secrets: dict[End, bytes] = {}
        self._waiting: dict[End, set[asyncio.Future[bytes]]] = {}

    def know(self, end: End, secret: bytes) -> None:
        self._secrets[end] = secret
        for future in self._waiting.pop(end, ()):
            if not future.done():
                future.set_result(secret)

    def forget(self, end: End) -> None:
        self._secrets.pop(end, None)

    async def secret_of(self, end: End) -> bytes:
        """The secret of a channel, once this process knows it: of the two ends of a flow one is told first."""
        if end in self._secrets:
            return self._secrets[end]
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(end, set())
        waiting.add(future)
        try:
            return await future
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(end) is waiting:
                del self._waiting[end]
