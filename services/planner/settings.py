"""What the planner can be told by flags and environment variables."""

from typing import Annotated, Self

from msgspec import Meta
from msgspec.structs import replace

from livescale.services.planner.plans.plan import Policy
from livescale.shared.runtime.role_settings import DecodeScaling, DisaggregationName, PrefillShare
from livescale.shared.runtime.settings import (
    GroupSetup,
    LiveEveryHop,
    LiveName,
    LiveWhen,
    PolicyName,
    ProcessSettings,
    TbtSlo,
    TopologyName,
    TtftSlo,
    check_plan_policy,
)
from livescale.shared.topology.topology import Topology
from livescale.shared.transfer.chunks import chunk_bytes_for


class PlannerSettings(ProcessSettings, frozen=True, kw_only=True):
    """The planner: makes a plan for each scale, and carries it out."""

    link_rate: Annotated[
        float,
        Meta(
            description="Bytes a second that links carry, by which chunks are sized; 0 takes it from the topology",
            ge=0,
        ),
    ] = 0.0
    topology: TopologyName = ""
    plan_policy: PolicyName = "auto"
    group_setup_s: GroupSetup = 0.1
    live: LiveName = "zigzag"
    live_every_hop: LiveEveryHop = False
    live_when: LiveWhen = "always"
    ttft_slo: TtftSlo = 1.0
    tbt_slo: TbtSlo = 0.15
    disaggregation: DisaggregationName = "off"
    prefill_share: PrefillShare | None = None
    decode_scaling: DecodeScaling = "mutate"
    patience_seconds: Annotated[
        float, Meta(description="Seconds without any arriving block after which a scale-out is given up", gt=0)
    ] = 30.0
    drain_seconds: Annotated[
        float,
        Meta(description="Seconds after which a scale-in is given up; allow more than the longest request takes", gt=0),
    ] = 3660.0

    def __post_init__(self) -> None:
        check_plan_policy(self.plan_policy, self.live)

    @property
    def chunk_bytes(self) -> int:
        """How much of a block is forwarded at once."""
        return chunk_bytes_for(self.link_rate)

    def in_topology(self, topology: Topology | None) -> Self:
        """Return the settings with a link rate, which is that of the topology's slowest NIC unless one is given."""
        return self if topology is None or self.link_rate else replace(self, link_rate=topology.slowest_nic)

    def policy_for(self, live: LiveName) -> Policy:
        """Return the policy by which plans are made in this live mode. Raises ValueError for one that does not suit the
        mode."""
        check_plan_policy(self.plan_policy, live)
        if self.plan_policy == "auto":
            return "binomial" if live == "pipeline" else "chains"
        return self.plan_policy
