"""The arena in the memory of a GPU, which holds the parameters of a model."""

from collections.abc import Sequence

import torch

from livescale.shared.memory.arena import BumpAllocator
from livescale.shared.memory.devices import DeviceBytes

BOUNCE_BYTES = 16 << 20


class PinnedBounce:
    """Pinned memory through which the CPU reads a device's.

    Copies have a stream of their own: they wait for no step.
    """

    def __init__(self, device: torch.device) -> None:
        self.size_bytes = BOUNCE_BYTES
        on_gpu = device.type == "cuda"
        self._memory = torch.empty(BOUNCE_BYTES, dtype=torch.uint8, pin_memory=on_gpu)
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def read(self, piece: torch.Tensor) -> memoryview:
        here = self._memory[: len(piece)]
        with torch.cuda.stream(self._stream):
            here.copy_(piece)  # returns when it is there
        return here.numpy().data


class DeviceArena:
    """One buffer of `size_bytes` on `device`, taken at process start. Raises MemoryError where it has less.

    It is a single allocation, which other processes of the machine can map (CUDA IPC).
    """

    def __init__(self, size_bytes: int, device: str) -> None:
        try:
            self._memory = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"{device} has no {size_bytes} bytes for parameters; lower --arena-bytes: {error}"
            ) from error
        self._bounce = PinnedBounce(self._memory.device)
        self._allocator = BumpAllocator(size_bytes)

    def place(self, sizes: Sequence[int]) -> list[DeviceBytes]:
        """Allocate a stretch for each block. Raises ArenaFull, and then allocates nothing."""
        places = self._allocator.take(sizes)
        return [DeviceBytes(self._memory, self._bounce, place.start, place.stop - place.start) for place in places]

    def clear(self) -> None:
        """Forget what was placed; the stretches share their memory with whatever is placed next."""
        self._allocator.used_bytes = 0
