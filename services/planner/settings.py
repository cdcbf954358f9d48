"""What the planner can be told."""

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
    """The planner: carries scales through."""

    link_rate: Annotated[
        float,
        Meta(
            description="What the workers' links carry, bytes a second, to size chunks by; 0 is what the topology says",
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
        float, Meta(description="Give a scale up when nothing of it arrived anywhere for so long", gt=0)
    ] = 30.0
    drain_seconds: Annotated[
        float,
        Meta(description="Give a scale in up after so long: a little more than requests may take at most", gt=0),
    ] = 3660.0

    def __post_init__(self) -> None:
        check_plan_policy(self.plan_policy, self.live)

    def policy_for(self, live: LiveName) -> Policy:
        """By which plans are made."""
        if self.plan_policy == "auto":
            return "binomial" if live == "pipeline" else "chains"
        return self.plan_policy
