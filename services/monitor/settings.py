"""The settings of the monitor. Scaling bounds and limits belong to each model (`ModelSpec`)."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.runtime.settings import ProcessSettings


class MonitorSettings(ProcessSettings, frozen=True, kw_only=True):
    """The monitor: load in, decisions to scale out."""

    stale_seconds: Annotated[
        float, Meta(description="Seconds after which a report is too old to decide by: the monitor holds then", gt=0)
    ] = 2.0
    retry_seconds: Annotated[float, Meta(description="Seconds to wait after a scale failed", gt=0)] = 1.0
