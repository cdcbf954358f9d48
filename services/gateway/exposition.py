"""Many processes' metrics as one exposition: families of one name merged, each sample marked with its process."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


def merge_expositions(texts: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Prometheus text of all processes, by id, and the ids whose text could not be merged.

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
