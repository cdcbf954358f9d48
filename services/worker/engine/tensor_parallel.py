"""Tensor parallelism (Megatron-LM): each rank of an instance computes its part of the tensors, and they exchange parts.

Parts are gathered, and added in float32 in the order of ranks: so every rank of every instance has the same bits.
Ranks form a process group of torch.distributed, gloo between CPUs and NCCL between GPUs. They find each other through a
store at the leading rank. No rank waits for ever: a rank that is late counts as lost.
"""

import re
import socket
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import AllgatherOptions, BroadcastOptions, ProcessGroupGloo, Store, TCPStore, Work
from torch.nn.functional import embedding, pad

from livescale.services.worker.engine.contract import RankLost
from livescale.services.worker.engine.parameters import Linear
from livescale.shared.memory.devices import CPU


class Ranks(Protocol):
    """The `size` ranks of an instance, as one of them sees them.

    All ranks make the same calls, with tensors of one shape on `device`.
    """

    size: int
    device: str

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, in the order of ranks, as copies of the caller's own. Raises RankLost."""

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite `tensor` with the first rank's and return it. Raises RankLost."""


class ResidualLinear(Protocol):
    """A matrix whose product is added to a residual."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product of `rows` `[row, in]`."""

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`residual` `[row, out]` plus the product of `rows` `[row, in]`."""


class RowParallel:
    """This rank's columns of a matrix `[out, in]`, for its part of the input. Other ranks have the other columns."""

    def __init__(self, matrix: Linear, ranks: Ranks) -> None:
        self._matrix = matrix
        self._ranks = ranks

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return added(self._ranks.gather(self._matrix(rows)))

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return added([*self._ranks.gather(self._matrix(rows)), residual])


def row_parallel(matrix: Linear, ranks: Ranks | None) -> ResidualLinear:
    """`matrix` as one of several ranks' parts, or itself where there is but one rank."""
    return matrix if ranks is None else RowParallel(matrix, ranks)


def embed_part(token_ids: torch.Tensor, part: torch.Tensor, own: range, ranks: Ranks) -> torch.Tensor:
    """`[row]` -> `[row, hidden]`. This rank has `part` `[token, hidden]` of the embedding, for its `own` tokens."""
    elsewhere = (token_ids < own.start) | (token_ids >= own.stop)
    rows = embedding((token_ids - own.start).masked_fill(elsewhere, 0), part)
    return added(ranks.gather(rows.masked_fill(elsewhere.unsqueeze(1), 0.0)))


def shared(rows: torch.Tensor, ranks: Ranks | None) -> torch.Tensor:
    """The first rank's `rows`. The other ranks pass a tensor of the same shape."""
    return rows if ranks is None else ranks.share(rows)


def side_by_side(logits: torch.Tensor, vocab_size: int, ranks: Ranks) -> torch.Tensor:
    """Join the logits `[row, token]` of all ranks to `[row, vocab]`. The last rank may have fewer tokens than the
    others."""
    most = -(-vocab_size // ranks.size)
    return torch.cat(ranks.gather(pad(logits, (0, most - logits.shape[1]))), dim=1)[:, :vocab_size]


def least(count: int, ranks: Ranks) -> int:
    """The smallest `count` of all ranks, which each of them learns."""
    return min(int(one) for one in ranks.gather(torch.tensor(count, device=ranks.device)))


def added(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum of the parts one after the other in float32, rounded once."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts[0].dtype)


MEETING = timedelta(seconds=15)
COLLECTIVE = timedelta(
    seconds=10
)  # ranks run the same layers at the same time, so a rank that is this late does not come


def open_store(address: str) -> tuple[Store, int]:
    """Open a store at which the ranks meet. Returns it with its port.

    Raises RankLost where `address` is not one of this machine's, or where the machine is too busy to connect to itself.
    """
    try:
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise RankLost(f"cannot listen on {address}: {error}") from error
    port = listener.getsockname()[1]
    own = listener.detach()  # else it would listen on every address of the machine
    try:
        return TCPStore(address, port, None, True, MEETING, wait_for_workers=False, master_listen_fd=own), port
    except RuntimeError as error:
        raise RankLost(f"cannot reach the ranks' own store: {_first_line(error)}") from error


def reach_store(address: str, port: int) -> Store:
    """Connect to the leading rank's store. Raises RankLost where it does not answer."""
    try:
        return TCPStore(address, port, None, False, MEETING, wait_for_workers=False)
    except RuntimeError as error:
        raise RankLost(f"cannot reach the rank that leads: {_first_line(error)}") from error


class ProcessGroup:
    """The `size` ranks that meet at `store`, of which this is `rank`. The others reach it at `address`. Raises
    RankLost."""

    def __init__(self, store: Store, rank: int, size: int, address: str, device: str = CPU) -> None:
        self.size = size
        self.device = device
        self._store = store  # the others use the store of the leading rank
        store.set_timeout(MEETING)
        try:
            self._group = _gloo(store, rank, size, address) if device == CPU else _nccl(store, rank, size)
            self.gather(torch.zeros(1, device=device))
        except RuntimeError as error:
            raise RankLost(f"the {size} ranks did not all connect: {_first_line(error)}") from error

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, in the order of ranks. Raises RankLost."""
        parts = list(part.new_empty(self.size, *part.shape).unbind(0))
        try:
            options = AllgatherOptions()
            options.timeout = COLLECTIVE
            self._group.allgather([parts], [part.contiguous()], options).wait()
        except RuntimeError as error:
            raise RankLost(f"a rank was lost: {_first_line(error)}") from error
        return parts

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite `tensor` with the first rank's and return it. Raises RankLost."""
        try:
            options = BroadcastOptions()
            options.rootRank = options.rootTensor = 0
            options.timeout = COLLECTIVE
            self._group.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise RankLost(f"a rank was lost: {_first_line(error)}") from error
        return tensor


class _Backend(Protocol):
    """The part of a torch process group that torch's type stubs leave out."""

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
    """The error's first line, without its place in gloo's source."""
    return re.sub(r"^\[[^]]*\.cc:\d+\] ", "", str(error).partition("\n")[0])
