"""Is the process there, can it serve, how does it do: /live, /ready, /health, /version and /metrics."""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.answers import Health, Live, Version
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.exposition import merge_expositions
from livescale.services.gateway.models import Models
from livescale.services.gateway.pool_view import router_is_there, warning, why_unavailable
from livescale.services.gateway.reading import json_answer
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.membership import AskMetrics
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.subjects import METRICS

METRICS_TIMEOUT_SECONDS = 1.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Probes:
    """Endpoints of starlette: a request in, an answer out."""

    gateway: str
    bus: Bus
    models: Models
    catalog: Catalog
    telemetry: Telemetry
    executor: Executor

    async def live(self, request: Request) -> Response:
        return json_answer(Live())

    async def version(self, request: Request) -> Response:
        return json_answer(Version(version("livescale")))

    async def health(self, request: Request) -> Response:
        """Also `/ready`: 200 when an instance can answer, or the router can hold requests while one starts."""
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

    async def metrics(self, request: Request) -> Response:
        """Of all processes that answer in time."""
        snapshot = await self.catalog.snapshot()
        others = [
            member.id
            for member in (snapshot.members if snapshot is not None else [])
            if member.id != self.gateway and member.lease != "dead"
        ]
        answers = await asyncio.gather(*(self._metrics_of(id) for id in others))
        texts = {id: text for id, text in zip(others, answers, strict=True) if text is not None}
        texts[self.gateway] = self.telemetry.exposition()
        # Thousands of samples take a while; streams must not wait for them.
        body, unreadable = await asyncio.get_running_loop().run_in_executor(self.executor, merge_expositions, texts)
        if unreadable:
            log.warning("metrics_unreadable", processes=unreadable)
        return Response(body, media_type=CONTENT_TYPE_LATEST)

    async def _metrics_of(self, id: str) -> str | None:
        try:
            return (await self.bus.call(METRICS, AskMetrics(), timeout=METRICS_TIMEOUT_SECONDS, id=id)).text
        except BusError as error:
            log.debug("metrics_not_answered", process=id, error=str(error))
            return None
