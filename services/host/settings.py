"""The settings of a host."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.runtime.settings import LinkSettings

GIB = 1024**3


class HostSettings(LinkSettings, frozen=True, kw_only=True):
    """A machine's host cache: models read from disk and kept in its DRAM, a source of parameters."""

    cache_bytes: Annotated[
        int,
        Meta(
            description="Most memory for models; it is taken as they are read, never more than the machine has free",
            ge=1,
        ),
    ] = 4 * GIB
    pin: Annotated[
        Literal["auto", "off"],
        Meta(
            description="Whether the host cache is pinned, so that GPUs copy from it directly; auto: where CUDA shows "
            "a GPU"
        ),
    ] = "auto"
    pack: Annotated[
        bool,
        Meta(
            description="Write each model that was read in the packed form, which is read faster, and its version "
            "with it"
        ),
    ] = True
    packed_dir: Annotated[
        str,
        Meta(
            description="Where to write the packed form; by default beside the checkpoint, or in ~/.cache/livescale "
            "where that cannot be written"
        ),
    ] = ""
