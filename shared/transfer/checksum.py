"""What a block is checked with, wherever it lies."""

import xxhash

from livescale.shared.links.contract import View


def checksum(view: View) -> int:
    """XXH3 of its bytes. To be called away from the event loop: it reads all of them."""
    if isinstance(view, memoryview):
        return xxhash.xxh3_64_intdigest(view)
    digest = xxhash.xxh3_64()
    for piece in view.pieces():
        digest.update(piece)
    return digest.intdigest()
