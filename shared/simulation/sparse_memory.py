"""Memory of a simulation that has any size and takes no room: it knows what was written where, and has no bytes.

What a disk writes to a block is named by its content. Whoever copies a part of it copies the name, and which part it
is. So a block that came whole and right describes itself as the one that was read, and its checksum is of that
description: one that is damaged, mixed up, or not whole has another.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from livescale.shared.memory.arena import BumpAllocator
from livescale.shared.memory.devices import DeviceBytes


class Extent(Struct, frozen=True):
    """The bytes `start` to `stop` - 1 of some memory: those of `content` from `origin` on."""

    start: int
    stop: int
    content: bytes
    origin: int


class SparseContent:
    """What some memory held when it was copied. Extents count from the beginning of the copy."""

    __slots__ = ("extents", "size_bytes")

    def __init__(self, size_bytes: int, extents: Sequence[Extent]) -> None:
        self.size_bytes = size_bytes
        self.extents = extents

    def __len__(self) -> int:
        return self.size_bytes

    def damaged(self) -> "SparseContent":
        """Return the same content but for its first byte, as damage leaves it."""
        memory = SparseMemory()
        memory.write(0, self.size_bytes, self.extents)
        memory.write(0, 1, [Extent(0, 1, b"damage", 0)])
        return SparseContent(self.size_bytes, memory.read(0, self.size_bytes))


class SparseMemory:
    """What was written to a block of memory: extents in order, which do not overlap. What lies between is empty."""

    def __init__(self) -> None:
        self._extents: list[Extent] = []

    def read(self, start: int, stop: int) -> list[Extent]:
        """What lies between, cut to it, counted from `start`."""
        whole = self._extents[0] if self._extents else None
        if whole is not None and whole.start <= start < stop <= whole.stop:  # as of nearly all that is sent
            return [Extent(0, stop - start, whole.content, whole.origin + start - whole.start)]
        found = []
        for extent in self._extents[bisect_right(self._extents, start, key=_stop) :]:
            if extent.start >= stop:
                break
            first, last = max(extent.start, start), min(extent.stop, stop)
            origin = extent.origin + first - extent.start
            found.append(Extent(first - start, last - start, extent.content, origin))
        return found

    def write(self, start: int, stop: int, extents: Sequence[Extent]) -> None:
        """Put `extents`, counted from `start`, in the place of what lies between."""
        if self._follows(start, extents):
            longer = self._extents[-1]
            self._extents[-1] = Extent(longer.start, start + extents[0].stop, longer.content, longer.origin)
            return
        # Neighbours that touch it are looked at too: parts that follow each other become one.
        first = bisect_left(self._extents, start, key=_stop)
        last = bisect_right(self._extents, stop, key=_start)
        near = self._extents[first:last]
        before = [replace(each, stop=min(each.stop, start)) for each in near if each.start < start]
        after = [_from(each, max(each.start, stop)) for each in near if each.stop > stop]
        new = [Extent(start + each.start, start + each.stop, each.content, each.origin) for each in extents]
        self._extents[first:last] = _joined([*before, *new, *after])

    def _follows(self, start: int, extents: Sequence[Extent]) -> bool:
        """Whether what is to be written from `start` on makes the last extent longer, as nearly all chunks do."""
        if len(extents) != 1 or not self._extents:
            return False
        last, more = self._extents[-1], extents[0]
        return last.stop == start and more.start == 0 and _goes_on(last, more)


class SparseBytes(DeviceBytes):
    """A stretch of sparse memory, which is passed on as bytes of a device are. Slices share it."""

    __slots__ = ("_offset", "_sparse", "nbytes")

    def __init__(self, memory: SparseMemory, offset: int, nbytes: int) -> None:
        self._sparse = memory
        self._offset = offset
        self.nbytes = nbytes

    @classmethod
    def of(cls, nbytes: int) -> Self:
        """Return empty memory of this size, which takes no room."""
        return cls(SparseMemory(), 0, nbytes)

    def __getitem__(self, part: slice) -> Self:
        start, stop, _ = part.indices(self.nbytes)
        return type(self)(self._sparse, self._offset + start, max(stop - start, 0))

    def __setitem__(self, part: slice, content: bytes) -> None:
        self[part].fill(content)

    def fill(self, content: bytes) -> None:
        """Write bytes that are known by a name alone."""
        self.put(SparseContent(self.nbytes, [Extent(0, self.nbytes, content, 0)]))

    def __bytes__(self) -> bytes:
        """All bytes, of memory where each content is as long as what it was written to, and 0 elsewhere."""
        data = bytearray(self.nbytes)
        for one in self.copy().extents:
            data[one.start : one.stop] = one.content[one.origin : one.origin + one.stop - one.start]
        return bytes(data)

    def copy(self) -> SparseContent:
        return SparseContent(self.nbytes, self._sparse.read(self._offset, self._offset + self.nbytes))

    def put(self, copy: SparseContent) -> None:
        """Write what was copied from memory of the same size."""
        self._sparse.write(self._offset, self._offset + self.nbytes, copy.extents)

    def pieces(self) -> Iterator[memoryview]:
        """What the bytes are, in place of the bytes."""
        for one in self.copy().extents:
            head = b"%d %d %d %d " % (one.start, one.stop, one.origin, len(one.content))
            yield memoryview(head + one.content)


class SparseKv(SparseBytes):
    """Memory for KV: what is written there is bytes, and the rest is empty."""

    __slots__ = ()


class SparseArena:
    """Memory of a modelled GPU for parameters. It is as full as a real one would be."""

    def __init__(self, size_bytes: int) -> None:
        self._allocator = BumpAllocator(size_bytes)

    def place(self, sizes: Sequence[int]) -> list[DeviceBytes]:
        """Return memory for each block. Raises ArenaFull, and then allocates nothing."""
        self._allocator.take(sizes)
        return [SparseBytes.of(size) for size in sizes]

    def clear(self) -> None:
        self._allocator.used_bytes = 0


def _start(extent: Extent) -> int:
    return extent.start


def _stop(extent: Extent) -> int:
    return extent.stop


def _from(extent: Extent, start: int) -> Extent:
    return replace(extent, start=start, origin=extent.origin + start - extent.start)


def _goes_on(extent: Extent, other: Extent) -> bool:
    """Whether the content of one goes on in the other."""
    return extent.content == other.content and extent.origin + extent.stop - extent.start == other.origin


def _joined(extents: Sequence[Extent]) -> list[Extent]:
    """Extents as few as can be: those that follow each other in memory and in their content are one."""
    joined = list[Extent]()
    for extent in extents:
        last = joined[-1] if joined else None
        if last is not None and last.stop == extent.start and _goes_on(last, extent):
            joined[-1] = replace(last, stop=extent.stop)
        else:
            joined.append(extent)
    return joined
