"""The settings of a router, each a flag of `livescale run router`."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.runtime.settings import DisaggregationName, ProcessSettings, RoutingName


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
    retry_after_ms: Annotated[
        int,
        Meta(
            description="Milliseconds after which a refused client may try again, as long as no rate is measured yet",
            ge=0,
        ),
    ] = 1000
