"""The ranks of an instance as a process group of torch.distributed: gloo between CPUs, NCCL between GPUs.

They find each other through a store at the one that leads. Nobody waits for ever: who is late is lost.
"""

import re
import socket
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import AllgatherOptions, BroadcastOptions, ProcessGroupGloo, Store, TCPStore, Work

from livescale.services.worker.engine.contract import RankLost
from livescale.shared.memory.devices import CPU

MEETING = timedelta(seconds=15)
COLLECTIVE = timedelta(seconds=10)  # ranks run the same layers at the same time: who is so much later is not coming


def open_store(address: str) -> tuple[Store, int]:
    """A store for the ranks to meet at, and its port. Raises RankLost where `address` is none of this machine's."""
    try:
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise RankLost(f"cannot listen on {address}: {error}") from error
    port = listener.getsockname()[1]
    own = listener.detach()  # else it would listen on every address of the machine
    return TCPStore(address, port, None, True, MEETING, wait_for_workers=False, master_listen_fd=own), port


def reach_store(address: str, port: int) -> Store:
    """Raises RankLost."""
    try:
        return TCPStore(address, port, None, False, MEETING, wait_for_workers=False)
    except RuntimeError as error:
        raise RankLost(f"cannot reach the rank that leads: {_first_line(error)}") from error


class ProcessGroup:
    """`size` ranks, this one `rank`, that meet at `store`; reached by the others at `address`. Raises RankLost."""

    def __init__(self, store: Store, rank: int, size: int, address: str, device: str = CPU) -> None:
        self.size = size
        self.device = device
        self._store = store  # of who leads it is the one that the others use
        store.set_timeout(MEETING)
        try:
            self._group = _gloo(store, rank, size, address) if device == CPU else _nccl(store, rank, size)
            self.gather(torch.zeros(1, device=device))
        except RuntimeError as error:
            raise RankLost(f"the {size} ranks did not meet: {_first_line(error)}") from error

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """What each rank gave, in their order. Raises RankLost."""
        parts = list(part.new_empty(self.size, *part.shape).unbind(0))
        try:
            options = AllgatherOptions()
            options.timeout = COLLECTIVE
            self._group.allgather([parts], [part.contiguous()], options).wait()
        except RuntimeError as error:
            raise RankLost(f"a rank was lost: {_first_line(error)}") from error
        return parts

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the first rank gave, in place of what is in `tensor`. Raises RankLost."""
        try:
            options = BroadcastOptions()
            options.rootRank = options.rootTensor = 0
            options.timeout = COLLECTIVE
            self._group.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise RankLost(f"a rank was lost: {_first_line(error)}") from error
        return tensor


class _Backend(Protocol):
    """What torch's stubs leave out."""

    def allgather(
        self, parts: list[list[torch.Tensor]], part: list[torch.Tensor], options: AllgatherOptions
    ) -> Work: ...

    def broadcast(self, tensors: list[torch.Tensor], options: BroadcastOptions) -> Work: ...


def _gloo(store: Store, rank: int, size: int, address: str) -> _Backend:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._timeout = MEETING
    options._devices = [gloo.create_device(hostname=address)]
    group: _Backend = gloo(store, rank, size, options)
    return group


def _nccl(store: Store, rank: int, size: int) -> _Backend:
    nccl: Any = torch.distributed.ProcessGroupNCCL  # not in torch's builds for CPUs
    options = nccl.Options()
    options._timeout = MEETING
    # It is the GPU that waits, not the host: where a rank is lost, NCCL's watchdog ends the process.
    group: _Backend = nccl(store, rank, size, options)
    return group


def _first_line(error: Exception) -> str:
    """Without the place in gloo's source."""
    return re.sub(r"^\[[^]]*\.cc:\d+\] ", "", str(error).partition("\n")[0])
