"""The settings of a router, each a flag of `livescale run router`."""

from typing import Annotated

from msgspec import Meta

from livescale.services.router.admission import RouterLimits
from livescale.services.router.forecast import Slos
from livescale.shared.runtime.role_settings import DisaggregationName
from livescale.shared.runtime.settings import ProcessSettings, RoutingName, TbtSlo, TtftSlo


class RouterSettings(ProcessSettings, frozen=True, kw_only=True):
    """The router: it queues requests by model and hands each to an instance."""

    max_waiting: Annotated[
        int, Meta(description="Most requests of one model that wait; more are refused with HTTP 429", ge=1)
    ] = 4096
    max_waiting_tokens: Annotated[
        int, Meta(description="Most prompt tokens of one model that wait; more are refused with HTTP 429", ge=1)
    ] = 1 << 22
    look_ahead: Annotated[
        int, Meta(description="Requests that an instance gets beyond those that it can run at once", ge=0, le=64)
    ] = 1
    routing: RoutingName = "least-loaded"
    disaggregation: DisaggregationName = "off"
    ttft_slo: TtftSlo = 1.0
    tbt_slo: TbtSlo = 0.15
    retry_after_ms: Annotated[
        int,
        Meta(
            description="Milliseconds after which a refused client may try again, as long as no rate is measured yet",
            ge=0,
        ),
    ] = 1000

    @property
    def limits(self) -> RouterLimits:
        """The limits that the router's policy keeps."""
        return RouterLimits(
            self.max_waiting,
            self.max_waiting_tokens,
            self.look_ahead,
            disaggregation=self.disaggregation,
            slos=Slos(self.ttft_slo, self.tbt_slo),
            routing=self.routing,
        )
