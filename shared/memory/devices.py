"""What a process computes on and keeps parameters in: a CPU and the host's memory, or a GPU and its own.

Bytes in a GPU's memory are sliced and passed on as a memoryview is, and stay where they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # code that only passes tensors on need not have torch
    import torch

CUDA_DEVICE = Path("/dev/nvidiactl")
CPU = "cpu"


class NoDevice(Exception):
    """The device that was asked for is not there; says what is."""


def count_gpus() -> int:
    """The number of GPUs that CUDA shows this process; 0 where torch was built without CUDA."""
    if not CUDA_DEVICE.exists():
        return 0
    import torch  # slow to import, and of no use where there is no GPU

    return torch.cuda.device_count()


def choose_device(asked: str, gpus: int) -> str:
    """`cpu` or `cuda:N` for `auto`, `cpu`, `cuda` or `cuda:N`. Raises NoDevice."""
    if asked == "auto":
        return "cuda:0" if gpus else CPU
    if asked == CPU:
        return CPU
    index = int(asked.removeprefix("cuda").removeprefix(":") or 0)
    if index < gpus:
        return f"cuda:{index}"
    shown = f"cuda:0 to cuda:{gpus - 1}" if gpus else "no GPU"
    raise NoDevice(
        f"device: cuda:{index} was asked for and CUDA shows this process {shown}; look at nvidia-smi, at "
        "CUDA_VISIBLE_DEVICES and whether torch.version.cuda is set, or choose --device cpu"
    )


class Bounce(Protocol):
    """Memory of the host through which a device's memory is read, in one thread at a time."""

    size_bytes: int

    def read(self, piece: "torch.Tensor") -> memoryview:
        """A copy of `piece`, which has at most `size_bytes`; it holds until the next call."""


class DeviceBytes:
    """A stretch of `memory`, a tensor of bytes in a device. Slices share it, and the CPU reads it through `bounce`."""

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
        """The same bytes as a tensor of torch, which shares their memory."""
        return self._memory.narrow(0, self._offset, self.nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The address and size of the bytes, as UCX reads them."""
        address = self._memory.data_ptr() + self._offset
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def pieces(self) -> Iterator[memoryview]:
        """Copies of all bytes in order, piece by piece. A piece is overwritten when the next is asked for."""
        step = self._bounce.size_bytes
        for start in range(0, self.nbytes, step):
            yield self._bounce.read(self[start : start + step].tensor)
