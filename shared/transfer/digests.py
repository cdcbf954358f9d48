"""Checksums of blocks that are computed while their bytes come, as those that have just come are still in the cache."""

from collections.abc import Callable

import xxhash

from livescale.shared.links.contract import View, checksum


class _Prefix:
    """The hash of the first `size_bytes` of a block, as they were written."""

    def __init__(self) -> None:
        self.hash = xxhash.xxh3_64()
        self.size_bytes = 0


class BlockDigest:
    """The checksum of a block: of its first bytes as far as they came in order, and of the others once it is whole."""

    def __init__(self) -> None:
        self._prefix = _Prefix()

    def write(self, offset: int) -> Callable[[memoryview], None]:
        """Note that bytes are going to be written from `offset` on.

        Returns what is to be called with each piece of them, in their order, perhaps in a thread. The same bytes are
        not written twice at a time.
        """
        if offset < self._prefix.size_bytes:
            self._prefix = _Prefix()  # who still writes further on keeps the one before, which no longer counts
        prefix, here = self._prefix, offset

        def add(piece: memoryview) -> None:
            nonlocal here
            if here == prefix.size_bytes:
                prefix.hash.update(piece)
                prefix.size_bytes += piece.nbytes
            here += piece.nbytes

        return add

    def is_known(self, view: View) -> bool:
        """Whether all bytes of the block, which are in `view`, are hashed."""
        return self._prefix.size_bytes == view.nbytes

    def of(self, view: View) -> int:
        """The checksum of the block, whose bytes are all in `view`.

        Where it is not known, call it in a thread: it takes milliseconds.
        """
        prefix = self._prefix
        if not prefix.size_bytes:
            return checksum(view)
        assert isinstance(view, memoryview)
        prefix.hash.update(view[prefix.size_bytes :])
        prefix.size_bytes = view.nbytes
        return prefix.hash.intdigest()
