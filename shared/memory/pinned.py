"""Memory of the host that GPUs copy from without a detour: CUDA knows it, and it stays where it is (pinned)."""

import ctypes
import mmap
from typing import Protocol

import structlog

PORTABLE = 1  # cudaHostRegisterPortable: for every GPU

log = structlog.get_logger()


class CudaRuntime(Protocol):
    """CUDA's runtime as torch has it: `torch.cuda.cudart()`. Both return 0 where it worked."""

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int, /) -> int: ...

    def cudaHostUnregister(self, address: int, /) -> int: ...


class PinnedMap(mmap.mmap):
    """A mapping that can be pinned, once all of its pages are there. It is let go before it is unmapped."""

    _runtime: CudaRuntime | None = None  # once it knows this memory

    def pin(self, runtime: CudaRuntime) -> None:
        """What cannot be pinned works as it is, and that is said."""
        status = int(runtime.cudaHostRegister(self._address(), len(self), PORTABLE))
        if status:
            log.warning("memory_not_pinned", size_bytes=len(self), status=status)
        else:
            self._runtime = runtime

    def __del__(self) -> None:
        if self._runtime is not None:
            self._runtime.cudaHostUnregister(self._address())

    def _address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))
