"""The metrics of all processes in one Prometheus text, for people without Prometheus."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.membership import AskMetrics, Member
from livescale.shared.subjects import METRICS

ASK_SECONDS = 1.0


async def ask_expositions(bus: Bus, members: Iterable[Member]) -> dict[str, str]:
    """The Prometheus text of each member that is not dead and answers in time, by its id."""

    async def ask_one(id: str) -> tuple[str, str | None]:
        with suppress(BusError):
            return id, (await bus.call(METRICS, AskMetrics(), timeout=ASK_SECONDS, id=id)).text
        return id, None

    found = await asyncio.gather(*(ask_one(member.id) for member in members if member.lease != "dead"))
    return {id: text for id, text in found if text is not None}


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
