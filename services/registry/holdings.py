"""Which process holds which blocks of parameters, by the last report of every worker and host that is alive. Pure."""

from collections.abc import Iterator

from msgspec.structs import replace

from livescale.services.registry.placement import HostCopy, HostMemory
from livescale.shared.messages.membership import Holding, HostReport, WorkerReport
from livescale.shared.messages.parameters import Manifest


class Holdings:
    """The last reports, amended by what is known before the next report says it."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerReport] = {}
        self._hosts: dict[str, HostReport] = {}

    def on_worker(self, report: WorkerReport) -> None:
        self._workers[report.id] = report

    def on_host(self, report: HostReport) -> None:
        self._hosts[report.id] = report

    def gone(self, id: str) -> None:
        """A member is dead or has joined anew: nothing it said counts any more."""
        self._workers.pop(id, None)
        self._hosts.pop(id, None)

    def workers(self) -> list[WorkerReport]:
        return [self._workers[id] for id in sorted(self._workers)]

    def hosts(self) -> list[HostReport]:
        return [self._hosts[id] for id in sorted(self._hosts)]

    def memories(self) -> list[HostMemory]:
        return [_memory(host) for host in self.hosts()]

    def holders(self, version: str) -> list[str]:
        """Ids of all that hold every block of this version."""
        return sorted({id for id, holding in self.all() if is_whole(holding, version)})

    def all(self) -> Iterator[tuple[str, Holding]]:
        for id, worker in self._workers.items():
            if worker.holding is not None:
                yield id, worker.holding
        for id, host in self._hosts.items():
            for holding in host.holdings:
                yield id, holding

    def in_workers(self) -> Iterator[tuple[str, str]]:
        """The ids of workers that hold all of a version, or all of their shard of it, and that version."""
        for id, worker in self._workers.items():
            whole = worker.holding is not None and is_whole(worker.holding, worker.holding.version)
            if whole and worker.version is not None:
                yield id, worker.version

    def is_on_host(self, version: str) -> bool:
        return any(is_whole(holding, version) for host in self._hosts.values() for holding in host.holdings)

    def is_served(self, version: str) -> bool:
        """Whether an instance that is not draining holds all of this version."""
        serving = (one.holding for one in self._workers.values() if one.state in ("serving", "live"))
        return any(holding is not None and is_whole(holding, version) for holding in serving)

    def uses(self, model: str) -> bool:
        """Whether any worker loads, serves or drains this model."""
        return any(worker.model == model for worker in self._workers.values())

    def flows_out(self, worker: str) -> int:
        return self._workers[worker].flows_out if worker in self._workers else 0

    def has_begun(self, host: str, model: str, version: str) -> bool:
        report = self._hosts.get(host)
        return report is not None and any((one.model, one.version) == (model, version) for one in report.holdings)

    def hold(self, host: str, name: str, manifest: Manifest) -> None:
        """Count the model as whole on this host, so that it is not read again before the host's next report."""
        report = self._hosts.get(host)
        if report is None or any(is_whole(one, manifest.version) and one.model == name for one in report.holdings):
            return
        indices = [block.index for block in manifest.blocks]
        whole = Holding(
            model=name,
            version=manifest.version,
            ready=indices,
            total=len(indices),
            size_bytes=manifest.size_bytes,
        )
        others = [one for one in report.holdings if one.model != name or one.version not in ("", manifest.version)]
        self._hosts[host] = replace(report, holdings=[*others, whole])

    def drop(self, host: str, name: str, version: str) -> None:
        """Count the version as released by this host."""
        report = self._hosts.get(host)
        if report is not None:
            left = [one for one in report.holdings if (one.model, one.version) != (name, version)]
            self._hosts[host] = replace(report, holdings=left)


def is_whole(holding: Holding, version: str) -> bool:
    return bool(version) and holding.version == version and holding.is_whole


def _memory(host: HostReport) -> HostMemory:
    copies = (
        HostCopy(one.model, one.version, one.size_bytes, is_whole(one, one.version), one.sending)
        for one in host.holdings
    )
    return HostMemory(host.id, host.cache_limit_bytes, tuple(copies))
