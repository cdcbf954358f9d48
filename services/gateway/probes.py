"""Whether the process lives, whether it can serve, and how it does: /live, /ready, /health, /version and /metrics.

`/metrics` is the gateway's own, so that Prometheus can read several gateways and count nothing twice.
"""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.answers import Health, Live, Version, router_is_there, warning, why_unavailable
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.responses import json_answer
from livescale.shared.bus.contract import Bus
from livescale.shared.process.exposition import ask_expositions, merge_expositions
from livescale.shared.process.telemetry import Telemetry

log = structlog.get_logger()


@dataclass(frozen=True)
class Probes:
    """Endpoints of starlette: each takes a request and returns its response."""

    gateway: str
    bus: Bus
    models: RegisteredModels
    catalog: Catalog
    telemetry: Telemetry
    executor: Executor

    async def live(self, request: Request) -> Response:
        """Answer GET /live: the process runs, whatever else is missing."""
        return json_answer(Live())

    async def version(self, request: Request) -> Response:
        return json_answer(Version(version("livescale")))

    async def health(self, request: Request) -> Response:
        """Answer GET /health and /ready: 200 when an instance can answer, or the router can hold requests while one
        starts; otherwise 503."""
        health = await self._health()
        return json_answer(health, 200 if health.status == "ok" else 503)

    async def _health(self) -> Health:
        connected = self.bus.connected
        snapshot = await self.catalog.snapshot() if connected else None
        models = [entry.spec.name for entry in self.models.entries if entry.state == "ready"]
        reason = why_unavailable(connected, snapshot, models)
        return Health(
            status="ok" if reason is None else "unavailable",
            bus=connected,
            router=snapshot is not None and router_is_there(snapshot),
            models=models,
            reason=reason,
            warning=UNSET if snapshot is None else warning(snapshot.workers),
        )

    async def why_unavailable(self) -> str | None:
        """Why no request can be answered or held; None where it can."""
        return (await self._health()).reason

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics: what this gateway counts."""
        return Response(self.telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def all_metrics(self, request: Request) -> Response:
        """Answer GET /metrics/all: the metrics of all processes that answer in time."""
        snapshot = await self.catalog.snapshot()
        others = [] if snapshot is None else [member for member in snapshot.members if member.id != self.gateway]
        texts = await ask_expositions(self.bus, others)
        texts[self.gateway] = self.telemetry.exposition()
        # Merging thousands of samples takes a while, so it is done in a thread: streams must not wait for it.
        body, unreadable = await asyncio.get_running_loop().run_in_executor(self.executor, merge_expositions, texts)
        if unreadable:
            log.warning("metrics_unreadable", processes=unreadable)
        return Response(body, media_type=CONTENT_TYPE_LATEST)
