"""Whether the process lives, whether it can serve, and how it does: /live, /ready, /health, /version and /metrics."""

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.answers import Health, Live, Version, router_is_there, warning, why_unavailable
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.responses import json_answer
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.membership import AskMetrics
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.subjects import METRICS

METRICS_TIMEOUT_SECONDS = 1.0

log = structlog.get_logger()


def merge_expositions(texts: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Merge the Prometheus texts of all processes, given by id. Returns the merged text, and the ids whose text could
    not be read.

    Samples get the label `process`; those that name their `engine` are marked already.
    """
    families: dict[str, Metric] = {}
    unreadable: list[str] = []
    for process, text in sorted(texts.items()):
        try:
            found = list(text_string_to_metric_families(text))
        except ValueError:
            unreadable.append(process)
            continue
        for family in found:
            _add(families, family, process)
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry), unreadable


def _add(families: dict[str, Metric], family: Metric, process: str) -> None:
    merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
    if merged.type == family.type:
        merged.samples.extend(_marked(sample, process) for sample in family.samples)


def _marked(sample: Sample, process: str) -> Sample:
    if "engine" in sample.labels or "process" in sample.labels:
        return sample
    return sample._replace(labels={**sample.labels, "process": process})


class _Families(Collector):
    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return (family for _, family in sorted(self._families.items()))

    def describe(self) -> list[Metric]:
        return []


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

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics: the metrics of all processes that answer in time."""
        snapshot = await self.catalog.snapshot()
        others = [
            member.id
            for member in (snapshot.members if snapshot is not None else [])
            if member.id != self.gateway and member.lease != "dead"
        ]
        answers = await asyncio.gather(*(self._metrics_of(id) for id in others))
        texts = {id: text for id, text in zip(others, answers, strict=True) if text is not None}
        texts[self.gateway] = self.telemetry.exposition()
        # Merging thousands of samples takes a while, so it is done in a thread: streams must not wait for it.
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
