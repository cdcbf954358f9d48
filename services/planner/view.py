"""The cluster as the planner sees it: the registry's snapshot, with what workers have reported since."""

import asyncio

from msgspec.structs import replace

from livescale.services.planner.fleet import ModelView
from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import AskSnapshot, Named, Snapshot
from livescale.shared.messages.transfers import InstanceServing
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import KEEP, MANIFEST, SNAPSHOT

CALL_SECONDS = 4.0  # longer than a lease: a process that is stopped for less than that still answers
FRESH_SECONDS = 1.5  # a report says what serving moves for so long: three heartbeats


class ClusterView:
    """Asks the registry for snapshots and manifests, and keeps the last report of each worker.

    A manifest never changes within a version, so each is asked for once.
    """

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._manifests: dict[str, Manifest] = {}
        self._reports: dict[str, WorkerReport] = {}
        self._heard: dict[str, float] = {}  # when, by worker
        self._left: dict[str, str] = {}  # the last instance that a worker was and is no more

    def on_report(self, report: WorkerReport) -> bool:
        """Keep a worker's report. Returns False for one that came late: of an earlier process than the last one, or of
        an instance that has ended and was not loaded again."""
        known = self._reports.get(report.id)
        if known is not None and report.epoch < known.epoch:
            return False
        if report.instance is not None and report.instance == self._left.get(report.id):
            if report.state in ("serving", "draining"):
                return False
            del self._left[report.id]
        self._reports[report.id] = report
        self._heard[report.id] = self._clock.now()
        return True

    def on_instance(self, event: InstanceServing) -> None:
        """Take in what a worker has become. Its report says so only a moment later: an operator who scales back as soon
        as a scale has ended would be told that others still load."""
        if event.what == "spare":
            self._left[event.worker] = event.instance
        known = self._reports.get(event.worker)
        if known is None or known.instance != event.instance:
            return
        if event.what == "serving":
            self._reports[event.worker] = replace(known, state="serving")
        elif event.what == "spare":
            self._reports[event.worker] = replace(
                known, state="spare", model=None, version=None, instance=None, plan_id=None, rank=0, load=None
            )

    def on_lease(self, change: LeaseChanged) -> None:
        """Forget the report of a worker that is dead."""
        known = self._reports.get(change.id)
        if change.state == "dead" and known is not None and known.epoch <= change.epoch:
            del self._reports[change.id], self._heard[change.id]
            self._left.pop(change.id, None)

    def reports(self) -> list[WorkerReport]:
        """Return the last report of every worker that lives."""
        return list(self._reports.values())

    async def look(self, model: str) -> ModelView:
        """Return the pool as the registry has it now, with what workers have reported since, and this model with its
        manifest.

        Raises Refusal: 404 for an unknown model, 503 for one that is not in memory yet or if the registry does not
        answer.
        """
        try:
            return await self._look(model)
        except Refusal:
            raise
        except BusError as error:
            raise Refusal(503, "the registry does not answer", retry_after_ms=500) from error

    async def keep(self, model: str) -> None:
        """Have the registry ensure a copy in a host's memory before the last instance goes. Raises Refusal until there
        is one."""
        try:
            await self._bus.call(KEEP, Named(model=model), timeout=CALL_SECONDS)
        except Refusal:
            raise
        except BusError as error:
            raise Refusal(503, "the registry does not answer", retry_after_ms=500) from error

    async def _look(self, model: str) -> ModelView:
        cached = self._manifests.get(model)
        if cached is None:
            snapshot, manifest = await asyncio.gather(self._ask_snapshot(), self._ask_manifest(model))
        else:
            snapshot, manifest = await self._ask_snapshot(), cached
        entry = next((entry for entry in snapshot.models if entry.spec.name == model), None)
        if entry is None:
            raise Refusal(404, f"model {model!r} is not registered")
        if entry.version != manifest.version:  # the model was registered anew since that was asked for
            manifest = await self._ask_manifest(model)
        self._manifests[model] = manifest
        return ModelView(snapshot, entry, manifest, self._silent(snapshot))

    def _silent(self, snapshot: Snapshot) -> frozenset[str]:
        since = self._clock.now() - FRESH_SECONDS
        return frozenset(one.id for one in snapshot.workers if self._heard.get(one.id, since) <= since)

    async def _ask_snapshot(self) -> Snapshot:
        snapshot = await self._bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
        return replace(snapshot, workers=[self._newest(report) for report in snapshot.workers])

    def _newest(self, report: WorkerReport) -> WorkerReport:
        own = self._reports.get(report.id)
        return own if own is not None and own.epoch >= report.epoch else report

    async def _ask_manifest(self, model: str) -> Manifest:
        return await self._bus.call(MANIFEST, Named(model=model), timeout=CALL_SECONDS)
