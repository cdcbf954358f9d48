"""The settings of an adapter of a whole system."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.runtime.settings import Settings


class LoraSettings(Settings, frozen=True, kw_only=True):
    """One adapter: its name, its directory in peft's format, and its base model, which may be left out where there is
    one model."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
    path: Annotated[str, Meta(min_length=1)]
    base: str | None = None
