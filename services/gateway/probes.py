"""The endpoints that tell how things stand: the models and their states, and whether and how this process serves.

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

from livescale.services.gateway.answers import (
    CardList,
    Health,
    Listing,
    Live,
    ModelCard,
    Version,
    router_is_there,
    status,
    warning,
    why_unavailable,
)
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.openapi import Operation
from livescale.services.gateway.responses import json_answer
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.registry import AskSnapshot, ModelEntry, Snapshot
from livescale.shared.process.exposition import ask_expositions, merge_expositions
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.subjects import SNAPSHOT

ASK_TIMEOUT_SECONDS = 2.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Catalog:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    bus: Bus
    models: RegisteredModels

    async def cards(self, request: Request) -> Response:
        if not self.models.entries:
            await self.models.refresh_for_client()
        snapshot = await self.snapshot()
        entries = [entry for entry in self.models.entries if entry.state != "removing"]
        return json_answer(Listing(data=[_card(entry, snapshot) for entry in entries]))

    async def card(self, request: Request) -> Response:
        entry = await self.models.find(request.path_params["model"], failed=True)
        return json_answer(_card(entry, await self.snapshot()))

    async def snapshot(self) -> Snapshot | None:
        """The registry's snapshot of the system; None where the registry does not answer."""
        try:
            return await self.bus.call(SNAPSHOT, AskSnapshot(), timeout=ASK_TIMEOUT_SECONDS)
        except BusError:
            return None


def _card(entry: ModelEntry, snapshot: Snapshot | None) -> ModelCard:
    return ModelCard(
        id=entry.spec.name,
        created=entry.created,
        root=entry.spec.path,
        parent=entry.spec.base,
        max_model_len=entry.max_model_len,
        livescale=status(entry, snapshot),
    )


def model_operations(catalog: Catalog) -> list[Operation]:
    """Return the operations of the models' endpoints, for the application and OpenAPI."""
    return [
        Operation(
            "GET",
            "/v1/models",
            catalog.cards,
            "The registered models",
            {200: CardList},
            errors=(503,),
            protected=True,
        ),
        Operation(
            "GET",
            "/v1/models/{model}",
            catalog.card,
            "One model",
            {200: ModelCard},
            errors=(404, 503),
            protected=True,
        ),
    ]


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


def probe_operations(probes: Probes) -> list[Operation]:
    """Return the operations of the probes, for the application and OpenAPI."""
    health = {200: Health, 503: Health}
    return [
        Operation("GET", "/live", probes.live, "The process answers", {200: Live}),
        Operation("GET", "/ready", probes.health, "Requests can be answered, or held until they can", health),
        Operation("GET", "/health", probes.health, "The same as /ready", health),
        Operation("GET", "/version", probes.version, "The version", {200: Version}),
        Operation("GET", "/metrics", probes.metrics, "This gateway's metrics, for Prometheus", {200: "text/plain"}),
        Operation("GET", "/metrics/all", probes.all_metrics, "All processes' metrics in one", {200: "text/plain"}),
    ]
