"""What a host can be told."""

from typing import Annotated

from msgspec import Meta

from shared.settings import LinkSettings

GIB = 1024**3


class HostSettings(LinkSettings, frozen=True, kw_only=True):
    """A machine's host cache: models read from disk and kept in its DRAM, a source of parameters."""

    cache_bytes: Annotated[
        int, Meta(description="Memory for models; taken as they are read, never more than the machine has free", ge=1)
    ] = 4 * GIB
