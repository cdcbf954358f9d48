"""Bytes in a GPU's memory as the rest of the system passes them on: sliced like a memoryview, and read by nobody."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever only passes them on need not have torch
    import torch


class DeviceBytes:
    """A stretch of `memory`, a tensor of bytes that stays where it is. Slices share it.

    The CPU reads it by way of `bounce`, a smaller tensor in the host's memory, on one thread at a time.
    """

    __slots__ = ("_bounce", "_memory", "_offset", "nbytes")

    def __init__(self, memory: "torch.Tensor", bounce: "torch.Tensor", offset: int, nbytes: int) -> None:
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
        step = len(self._bounce)
        for start in range(0, self.nbytes, step):
            piece = self[start : start + step].tensor
            here = self._bounce[: len(piece)]
            here.copy_(piece)  # returns when it is there
            yield here.numpy().data
