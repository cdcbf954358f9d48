"""Opens the link that the settings ask for: the one place that chooses a transport and its shaping."""

import asyncio
import os
from functools import partial
from pathlib import Path

import structlog

from livescale.shared.links.calendars import LocalCalendar, SharedCalendar
from livescale.shared.links.contract import Link, LinkError
from livescale.shared.links.link_path import memory_kind
from livescale.shared.links.process_memory import why_refused
from livescale.shared.links.shaping import Cluster, ShapedLink, SingleRate
from livescale.shared.links.sockets import SocketLink
from livescale.shared.runtime.clock import seconds_away
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.topology.file import find_topology

# stdout belongs to what a command prints; ucxx sets variables that some libucx do not know.
UCX_LOGGING = {"UCX_LOG_FILE": "stderr", "UCX_WARN_UNUSED_ENV_VARS": "n"}
RDMA_DEVICES = Path("/sys/class/infiniband")

log = structlog.get_logger()


async def open_link(settings: LinkSettings, memory: str = "host") -> Link:
    """Open the link that the settings ask for, shaped where they say so.

    `memory` is where parameters are kept: host, pinned or cuda:N. Raises LinkError, and never falls back.
    """
    link = await (_open_ucx if settings.transport == "ucx" else _open_sockets)(settings.bind, memory)
    try:
        return _shaped(link, settings)
    except LinkError:
        await link.close()
        raise


def _shaped(link: Link, settings: LinkSettings) -> Link:
    if settings.shaping_file:
        away = partial(seconds_away, asyncio.get_running_loop())
        return ShapedLink(link, _cluster(settings), SharedCalendar(Path(settings.shaping_file), away))
    if settings.link_rate:
        return ShapedLink(link, SingleRate(settings.link_rate), LocalCalendar())
    return link


def _cluster(settings: LinkSettings) -> Cluster:
    if settings.link_rate:
        raise LinkError("link-rate and shaping-file: both limit the link; give only one of the two")
    if not settings.topology:
        raise LinkError("topology is missing: shaping-file limits links to the rates of a topology; give --topology")
    try:
        return Cluster(find_topology(settings.topology), settings.place)
    except ValueError as error:
        raise LinkError(f"topology: {error}") from None


async def _open_sockets(bind: str, memory: str) -> Link:
    if memory_kind(memory) == "cuda":
        raise LinkError(f"transport: sockets do not reach the memory of {memory}; choose --transport ucx")
    return await SocketLink.open(bind)


def ucx_environment(memory: str, rdma_devices: Path = RDMA_DEVICES) -> dict[str, str]:
    """What libucx is told by the environment, unless the user tells it otherwise there.

    UCX watches which memory is unmapped, for the sake of what it has registered. To do that by rewriting code takes
    0.3 s of a process's start, so it is done by the tables of libraries, where neither RDMA devices nor GPUs need more.
    It must not be turned off: a send by CMA that is given up while it is under way would kill the process. Nor may a
    process first import torch or llguidance when a link is open by these tables: while they load, the libc frees what
    UCX allocated, and the process aborts. Workers import torch before, and nothing else that opens links imports them.
    """
    registers = memory_kind(memory) != "host" or rdma_devices.exists()
    return UCX_LOGGING if registers else {**UCX_LOGGING, "UCX_MEM_MMAP_HOOK_MODE": "reloc"}


async def _open_ucx(bind: str, memory: str) -> Link:
    for name, value in ucx_environment(memory).items():
        os.environ.setdefault(name, value)  # read by libucx once, when it is loaded
    try:
        from livescale.shared.links.ucx import UcxLink
    except ImportError as error:
        raise LinkError(
            f"transport: UCX is not installed ({error}); install livescale[ucx] or choose --transport socket"
        ) from error
    refused = why_refused()
    if refused is not None:
        log.warning("memory_of_others_not_readable", reason=refused, instead="what is not mapped goes by TCP")
    return await UcxLink.open(bind, memory)
