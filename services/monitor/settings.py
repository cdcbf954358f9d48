"""The settings of the monitor. Scaling bounds and limits belong to each model (`ModelSpec`)."""

from typing import Annotated

from msgspec import Meta

from livescale.services.monitor.weighing import RoleRule
from livescale.shared.runtime.role_settings import DisaggregationName, PrefillShare, PreScaleDecode
from livescale.shared.runtime.settings import ProcessSettings, ScalingMode


class MonitorSettings(ProcessSettings, frozen=True, kw_only=True):
    """The monitor: load in, decisions to scale out."""

    stale_seconds: Annotated[
        float, Meta(description="Seconds after which a load report is too old: the monitor then changes nothing", gt=0)
    ] = 2.0
    scaling: ScalingMode = "automatic"
    disaggregation: DisaggregationName = "off"
    prefill_share: PrefillShare | None = None
    pre_scale_decode: PreScaleDecode = True
    retry_seconds: Annotated[float, Meta(description="Seconds to wait before a failed scale is tried again", gt=0)] = (
        1.0
    )

    def role_rule(self) -> RoleRule:
        """Whether instances prefill or decode by what the load needs."""
        return RoleRule(self.disaggregation, self.prefill_share is None, self.pre_scale_decode)
