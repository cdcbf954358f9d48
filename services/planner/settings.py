"""What the planner can be told by flags and environment variables."""

from typing import Annotated

from msgspec import Meta

from livescale.services.planner.plans.plan import Policy
from livescale.shared.runtime.settings import (
    LiveEveryHop,
    LiveName,
    LiveWhen,
    PolicyName,
    ProcessSettings,
    TopologyName,
    TtftSlo,
    check_plan_policy,
)


class PlannerSettings(ProcessSettings, frozen=True, kw_only=True):
    """The planner: makes a plan for each scale, and carries it out."""

    link_rate: Annotated[
        float,
        Meta(
            description="What workers' links carry, bytes a second, to size chunks by; 0 takes it from the topology",
            ge=0,
        ),
    ] = 0.0
    topology: TopologyName = ""
    plan_policy: PolicyName = "auto"
    live: LiveName = "zigzag"
    live_every_hop: LiveEveryHop = False
    live_when: LiveWhen = "always"
    ttft_slo: TtftSlo = 1.0
    patience_seconds: Annotated[
        float, Meta(description="Give a scale up when nothing of it has arrived anywhere for so many seconds", gt=0)
    ] = 30.0
    drain_seconds: Annotated[
        float,
        Meta(description="Give a scale in up after so many seconds, a little more than requests may take", gt=0),
    ] = 3660.0

    def __post_init__(self) -> None:
        check_plan_policy(self.plan_policy, self.live)

    def policy_for(self, live: LiveName) -> Policy:
        """Return the policy by which plans are made in this live mode. Raises ValueError for one that does not suit the
        mode."""
        check_plan_policy(self.plan_policy, live)
        if self.plan_policy == "auto":
            return "binomial" if live == "pipeline" else "chains"
        return self.plan_policy
