"""Bytes in a GPU's memory as the rest of the system passes them on: sliced like a memoryview, and read by nobody."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # whoever only passes them on need not have torch
    import torch


class Bounce(Protocol):
    """Memory of the host by way of which a device's is read, on one thread at a time."""

    size_bytes: int

    def read(self, piece: "torch.Tensor") -> memoryview:
        """A copy of `piece`, at most so large, until the next."""


class DeviceBytes:
    """A stretch of `memory`, a tensor of bytes that stays where it is. Slices share it, and the CPU reads it by way of
    `bounce`."""

    __slots__ = ("_bounce", "_memory", "_offset", "nbytes")

    def __init__(self, memory: "torch.Tensor", bounce: Bounce, offset: int, nbytes: int) -> None:
        self._memory = memory
        self._bounce = bounce
        self._offset = offset
        self.nbytes = nbytes

    def __getitem__(self, part: slice) -> "DeviceBytes":
        start, stop, _ = part.indices(self.nbytes)
        return DeviceBytes(self._memory, self._bounce, self._offset + start, max(stop - start, 0))

    @property
    def tensor(self) -> "torch.Tensor":
        """The same bytes for torch."""
        return self._memory.narrow(0, self._offset, self.nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Where UCX finds them."""
        address = self._memory.data_ptr() + self._offset
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def pieces(self) -> Iterator[memoryview]:
        """A copy of all of it, in order; a piece is gone when the next is asked for."""
        step = self._bounce.size_bytes
        for start in range(0, self.nbytes, step):
            yield self._bounce.read(self[start : start + step].tensor)
