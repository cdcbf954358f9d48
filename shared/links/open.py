"""The one place where a transport is chosen."""

import os

from shared.links.contract import Link, LinkError
from shared.links.shaping import ShapedLink
from shared.links.sockets import SocketLink
from shared.settings import LinkSettings

# stdout belongs to what a command prints; ucxx sets variables that some libucx do not know.
UCX_LOGGING = {"UCX_LOG_FILE": "stderr", "UCX_WARN_UNUSED_ENV_VARS": "n"}


async def open_link(settings: LinkSettings) -> Link:
    """The link the settings ask for, shaped when `link_rate` is not 0. Raises LinkError, never falls back."""
    link = await _open_ucx(settings.bind) if settings.transport == "ucx" else await SocketLink.open(settings.bind)
    return ShapedLink(link, settings.link_rate) if settings.link_rate else link


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
