"""The path of bytes between two processes: UCX chooses it, and here it is named for people. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

MemoryKind = Literal["host", "pinned", "cuda"]

# Transports within one machine; those that copy once come first.
SAME_MACHINE = {
    "xpmem": "the receiver maps the sender's memory",
    "knem": "the kernel copies from the sender's memory to the receiver's",
    "cma": "the kernel copies from the sender's memory to the receiver's",
    "posix": "through a shared segment",
    "sysv": "through a shared segment",
    "self": "within this process",
}
RDMA = ("rc_", "dc_", "ud_")


@dataclass(frozen=True)
class LinkPath:
    """A path by its name in the field, as `rc_mlx5, GPUDirect`; `reason` says why it was chosen."""

    name: str
    reason: str


SOCKETS = LinkPath("sockets", "chosen by --transport socket")
MAPPED = LinkPath("mapped", "the receiver maps the sender's memory, nothing is moved")


def memory_kind(memory: str) -> MemoryKind:
    """The kind of `memory`, which is host, pinned or cuda:N."""
    match memory:
        case "host":
            return "host"
        case "pinned":
            return "pinned"
        case _:
            return "cuda"


def choose_path(
    transports: Collection[str], here: MemoryKind, there: MemoryKind, *, gpudirect: bool = False
) -> LinkPath:
    """The path that UCX takes for large messages between two kinds of memory, given the `transports` it has.

    `gpudirect`: whether network cards of this machine reach the memory of its GPUs.
    """
    on_gpus = "cuda" in (here, there)
    if here == there == "cuda" and "cuda_ipc" in transports:
        return LinkPath("cuda_ipc", "both ends are GPUs of one machine: from GPU to GPU")
    host = _between_hosts(transports)
    if not on_gpus:
        return host
    if host.name.startswith(RDMA) and gpudirect:
        return LinkPath(f"{host.name}, GPUDirect", "network cards read and write GPU memory themselves")
    return LinkPath(f"cuda_copy, {host.name}", f"by way of the host's memory; {host.reason}")


def _between_hosts(transports: Collection[str]) -> LinkPath:
    for name, how in SAME_MACHINE.items():
        if name in transports:
            return LinkPath(name, f"both ends are on one machine: {how}")
    cards = sorted(name for name in transports if name.startswith(RDMA))
    if cards:
        return LinkPath(cards[0], "network cards that both ends have do RDMA")
    if "tcp" in transports:
        return LinkPath("tcp", "UCX has neither shared memory nor RDMA between the two")
    return LinkPath("unknown", f"UCX names {', '.join(sorted(transports)) or 'nothing'}")
