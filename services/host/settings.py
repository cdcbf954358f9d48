"""The settings of a host, each a flag of `livescale run host`."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.runtime.settings import LinkSettings

GIB = 1024**3


class HostSettings(LinkSettings, frozen=True, kw_only=True):
    """A machine's host cache: models read from disk and kept in its DRAM, a source of parameters."""

    cache_bytes: Annotated[
        int,
        Meta(
            description="Most bytes of memory for models; it is taken as models are read, and never exceeds what is "
            "free",
            ge=1,
        ),
    ] = 4 * GIB
    pin: Annotated[
        Literal["auto", "off"],
        Meta(
            description="Whether the host cache is pinned in memory, so that GPUs copy from it directly. auto: where "
            "CUDA shows a GPU; off: never"
        ),
    ] = "auto"
    pack: Annotated[
        bool,
        Meta(
            description="Write each model that was read to disk once more, in the packed form, which is read faster "
            "the next time"
        ),
    ] = True
    packed_dir: Annotated[
        str,
        Meta(
            description="Directory for packed forms; by default beside the checkpoint, or ~/.cache/livescale where "
            "that cannot be written"
        ),
    ] = ""
