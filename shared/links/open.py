"""The one place where a transport is chosen, and whether it is shaped."""

import os
from pathlib import Path

from shared.links.calendars import LocalCalendar, SharedCalendar
from shared.links.contract import Link, LinkError
from shared.links.shaping import Cluster, ShapedLink, SingleRate
from shared.links.sockets import SocketLink
from shared.settings import LinkSettings
from shared.topology_file import find_topology

# stdout belongs to what a command prints; ucxx sets variables that some libucx do not know.
UCX_LOGGING = {"UCX_LOG_FILE": "stderr", "UCX_WARN_UNUSED_ENV_VARS": "n"}


async def open_link(settings: LinkSettings) -> Link:
    """The link the settings ask for, shaped where they say so. Raises LinkError, never falls back."""
    link = await _open_ucx(settings.bind) if settings.transport == "ucx" else await SocketLink.open(settings.bind)
    try:
        return _shaped(link, settings)
    except LinkError:
        await link.close()
        raise


def _shaped(link: Link, settings: LinkSettings) -> Link:
    if settings.shaping_file:
        return ShapedLink(link, _cluster(settings), SharedCalendar(Path(settings.shaping_file)))
    if settings.link_rate:
        return ShapedLink(link, SingleRate(settings.link_rate), LocalCalendar())
    return link


def _cluster(settings: LinkSettings) -> Cluster:
    if settings.link_rate:
        raise LinkError("link-rate and shaping-file: a link is shaped by one of them")
    if not settings.topology:
        raise LinkError("topology: shaping-file shapes links to a topology; name one")
    try:
        return Cluster(find_topology(settings.topology), settings.place)
    except ValueError as error:
        raise LinkError(f"topology: {error}") from None


async def _open_ucx(bind: str) -> Link:
    for name, value in UCX_LOGGING.items():
        os.environ.setdefault(name, value)  # read by libucx once, when it is loaded
    try:
        from shared.links.ucx import UcxLink
    except ImportError as error:
        raise LinkError(
            f"transport: UCX is not installed ({error}); install livescale[ucx] or choose --transport socket"
        ) from error
    return await UcxLink.open(bind)
