"""What the monitor has heard: the load of workers, the router's queues, models, and scales under way. Pure.

A signal that is older than `stale_seconds` is unknown, not zero.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from livescale.services.monitor.role_signals import RoleLoad, observe_roles
from livescale.services.monitor.spares import SpareWorkers
from livescale.shared.messages.membership import LeaseChanged, QueueLoad, RouterReport, WorkerReport
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import Decision, ScaleRecord

LOADED = ("loading", "live", "serving")


class Observed(Struct, frozen=True):
    """What is known of one model now. Rates and sizes are those of one instance; None is unknown.

    `stale` says why the observation cannot be trusted. `coming` counts instances that are planned and not seen yet,
    `leaving` those that still serve but are to be drained; both are in running plans. `draining` are these and those
    that only finish what they have begun, of which `recallable` can serve again at once. Of the spare workers `spare`
    instances can be made, and `loose` ones are left, too few for one more. `outdated` instances serve an older version
    of the model. `roles` has their number by role. `arriving_rate` is prompt tokens a second, of late. In
    `kv_blocks_used` an instance where a request waits for KV blocks counts as full, although some blocks are kept free
    for requests that grow. What waits and runs counts at instances that drain, too, as others go on with it. `parked`
    counts the spare workers that keep the parameters of its version, and could serve at once. `parks` says that workers
    have kept parameters of the model before.
    """

    instances: int
    loading: int
    coming: int
    leaving: int
    draining: int
    outdated: int
    spare: int
    waiting_tokens: int
    waiting_requests: int
    running_requests: int
    kv_blocks_used: int
    arriving_rate: float | None
    prefill_rate: float | None
    max_requests: float | None
    kv_blocks: float | None
    stale: str | None
    roles: RoleLoad = RoleLoad()
    recallable: int = 0
    parked: int = 0
    parks: bool = False
    loose: int = 0

    @property
    def to_be_had(self) -> int:
        """How many more instances there can be at once: of spare workers, and of those that drain."""
        return self.spare + self.recallable

    @property
    def current(self) -> int:
        """Instances once the plans under way are carried out."""
        return self.instances + self.coming - self.leaving


@dataclass
class _Capacity:
    """What one instance of a model could do, as last measured, and whether any was parked."""

    prefill_rate: float | None = None
    max_requests: float | None = None
    kv_blocks: float | None = None
    parks: bool = False


class Signals:
    """The last report of every worker and of the router, the models, and the scales under way."""

    def __init__(self, stale_seconds: float) -> None:
        self._stale_seconds = stale_seconds
        self._workers: dict[str, tuple[WorkerReport, float]] = {}
        # The same of those that have a model, by model, in the order in which they were last heard.
        self._by_model: dict[str, dict[str, tuple[WorkerReport, float]]] = {}
        self._spares = SpareWorkers(stale_seconds)
        self._router: tuple[RouterReport, float] | None = None
        self._models: dict[str, ModelEntry] = {}
        self._capacities: dict[str, _Capacity] = {}
        self._scales: dict[str, ScaleRecord] = {}
        self._dead: dict[str, int] = {}
        # By model: its entry and what was observed of it, until anything is heard that changes it.
        self._observed: dict[str, tuple[ModelEntry, Observed]] = {}

    def on_worker(self, report: WorkerReport, now: float) -> None:
        id, model = report.id, report.model
        if report.epoch <= self._dead.get(id, 0):
            return
        known, _ = self._workers.get(id, (None, now))
        self._workers[id] = heard = report, now
        had = None if known is None else known.model
        if had is not None or model is not None:  # few have, where there are thousands
            if had is not None:
                self._remove(had, id)
            if model is not None:
                self._by_model.setdefault(model, {})[id] = heard
            if known != report:
                self._observed.pop(had or "", None)
                self._observed.pop(model or "", None)
        if report.state == "spare":
            self._spares.heard(id, report.arena_bytes, now, report.parked)
        else:
            self._spares.remove(id)

    def _forget(self, id: str) -> None:
        report, _ = self._workers.pop(id)
        self._spares.remove(id)
        if report.model is not None:
            self._remove(report.model, id)
            self._observed.pop(report.model, None)

    def _remove(self, model: str, id: str) -> None:
        having = self._by_model[model]
        del having[id]
        if not having:
            del self._by_model[model]

    def _having(self, model: str) -> Collection[tuple[WorkerReport, float]]:
        """The last reports of the workers that have this model, and when they came."""
        return self._by_model.get(model, {}).values()

    def on_router(self, report: RouterReport, now: float) -> None:
        if self._router is None or self._router[0].queues != report.queues:
            self._observed.clear()
        self._router = (report, now)

    def on_models(self, entries: Iterable[ModelEntry]) -> None:
        self._models = {entry.spec.name: entry for entry in entries}

    def on_lease(self, change: LeaseChanged) -> None:
        if change.state != "dead":
            return
        self._dead[change.id] = change.epoch
        known = self._workers.get(change.id)
        if known is not None and known[0].epoch <= change.epoch:
            self._forget(change.id)

    def on_scale(self, record: ScaleRecord) -> None:
        """A scale of the planner began, went on or ended."""
        self._observed.clear()
        if record.state in ("done", "failed"):
            self._scales.pop(record.id, None)
        else:
            self._scales[record.id] = record

    @property
    def sees_scales(self) -> bool:
        """Whether any scale is thought to be under way."""
        return bool(self._scales)

    def under_way(self) -> list[Decision]:
        """What the scales under way were decided by."""
        return [record.decision for record in self._scales.values()]

    def on_scales(self, records: Iterable[ScaleRecord]) -> None:
        """Take the planner's own list: a scale that is not in it is over, even if its end was not heard."""
        self._observed.clear()
        self._scales = {record.id: record for record in records if record.state not in ("done", "failed")}

    def traceparent(self, model: str) -> str | None:
        """The trace of the request that has waited longest for this model; None where none waits, or it is not
        traced."""
        queues = [] if self._router is None else self._router[0].queues
        return next((queue.traceparent for queue in queues if queue.model == model), None)

    def models(self) -> list[ModelEntry]:
        return [self._models[name] for name in sorted(self._models)]

    def observe(self, entry: ModelEntry, now: float) -> Observed:
        """What is known of one model at this moment: the same object as before, where nothing has changed."""
        name = entry.spec.name
        known = self._observed.get(name)
        observed = self._look(entry) if known is None or known[0] is not entry else known[1]
        taken, stale = self._taken(), self._staleness(name, now)
        parked = self._parked(entry, taken, now)
        # Those that were heard lately, fit, and are in no running plan.
        spare, loose = divmod(self._spares.count(entry.rank_bytes, taken, now), entry.spec.tensor_parallel_size)
        capacity = self._capacities.setdefault(name, _Capacity())
        capacity.parks = capacity.parks or parked > 0
        known_so = (observed.spare, observed.loose, observed.parked, observed.parks, observed.stale)
        if (spare, loose, parked, capacity.parks, stale) != known_so:
            observed = replace(observed, spare=spare, loose=loose, parked=parked, parks=capacity.parks, stale=stale)
        self._observed[name] = entry, observed
        return observed

    def _look(self, entry: ModelEntry) -> Observed:
        """What reports say of one model, whatever time it is: without spare workers, and as if all was heard lately."""
        name = entry.spec.name
        leaders = [(r, at) for r, at in self._having(name) if r.rank == 0]
        loaded = [(r, at) for r, at in leaders if r.state in LOADED]
        capacity = self._measure(name, [r for r, _ in loaded])
        seen = {r.instance for r, _ in loaded if r.instance is not None}
        leaving = self._drained(name) & seen
        draining = {r.instance for r, _ in leaders if r.state == "draining" and r.instance is not None}
        shared = loaded + [(r, at) for r, at in leaders if loaded and _hands_over(r, entry)]
        loads = [r.load for r, _ in shared if r.load is not None]
        queue = self._queue(name)
        return Observed(
            instances=len(loaded),
            loading=sum(r.state in ("loading", "live") for r, _ in loaded),
            coming=len(self._planned(name) - seen),
            leaving=len(leaving),
            draining=len(leaving | draining),
            outdated=sum(_is_outdated(r, entry) and r.instance not in self._drained(name) for r, _ in loaded),
            spare=0,
            waiting_tokens=queue.waiting_tokens + sum(load.waiting_tokens for load in loads),
            waiting_requests=queue.waiting_requests + sum(load.waiting_requests for load in loads),
            running_requests=sum(load.running_requests for load in loads),
            kv_blocks_used=sum(load.kv_blocks_total if load.kv_full else load.kv_blocks_used for load in loads),
            arriving_rate=queue.arriving_tokens_per_second,
            prefill_rate=capacity.prefill_rate,
            max_requests=capacity.max_requests,
            kv_blocks=capacity.kv_blocks,
            stale=None,
            roles=observe_roles([r for r, _ in loaded], self._scales.values(), name, self._drained(name)),
            recallable=self._recallable(entry, [r for r, _ in leaders]),
        )

    def loaded(self, model: str) -> int:
        """How many instances of this model load or serve."""
        return sum(r.rank == 0 and r.state in LOADED for r, _ in self._having(model))

    def least_arena(self, model: str) -> int:
        """The smallest arena, in bytes, of the workers that have this model; 0 where none has it."""
        return min((report.arena_bytes for report, _ in self._having(model)), default=0)

    def _queue(self, model: str) -> QueueLoad:
        queues = [] if self._router is None else self._router[0].queues
        nothing = QueueLoad(model=model, waiting_requests=0, waiting_tokens=0, oldest_seconds=0.0, running=0)
        return next((queue for queue in queues if queue.model == model), nothing)

    def _staleness(self, model: str, now: float) -> str | None:
        if self._router is None:
            return "the router has not reported yet"
        having = self._having(model)
        _, first = next(iter(having), self._router)
        if now - min(first, self._router[1]) <= self._stale_seconds:  # as nearly always
            return None
        loaded = ((r.id, at) for r, at in having if r.rank == 0 and r.state in LOADED)
        heard = [("the router", self._router[1]), *loaded]
        late = [(who, now - at) for who, at in sorted(heard) if now - at > self._stale_seconds]
        return f"{late[0][0]} last reported {late[0][1]:.1f} s ago" if late else None

    def _measure(self, model: str, reports: list[WorkerReport]) -> _Capacity:
        """Medians over the model's instances; a value that none of them tells now is as it was last known."""
        known = self._capacities.setdefault(model, _Capacity())
        loads = [report.load for report in reports if report.load is not None]
        rates = [load.prefill_tokens_per_second for load in loads if load.prefill_tokens_per_second is not None]
        known.prefill_rate = median(rates) if rates else known.prefill_rate
        known.max_requests = median(load.max_requests for load in loads) if loads else known.max_requests
        known.kv_blocks = median(load.kv_blocks_total for load in loads) if loads else known.kv_blocks
        return known

    def _planned(self, model: str) -> set[str]:
        records = (record for record in self._scales.values() if record.state in ("planned", "loading"))
        return {id for record in records if record.decision.model == model for id in record.instances}

    def _drained(self, model: str) -> set[str]:
        records = (record for record in self._scales.values() if record.state == "draining")
        return {id for record in records if record.decision.model == model for id in record.instances}

    def _recallable(self, entry: ModelEntry, leaders: Iterable[WorkerReport]) -> int:
        """How many instances drain that the planner would have serve again: those of one worker and this version, which
        were given back as idle. Whom an operator lets go is not taken back before it is spare."""
        if entry.spec.tensor_parallel_size > 1:
            return 0
        records = (record for record in self._scales.values() if record.decision.rule == "idle")
        able = {id for record in records if record.state == "draining" for id in record.instances}
        return sum(report.instance in able and report.version == entry.version for report in leaders)

    def _parked(self, entry: ModelEntry, taken: set[str], now: float) -> int:
        return 0 if entry.version is None else self._spares.count_parked(entry.version, taken, now)

    def _taken(self) -> set[str]:
        """The workers of running plans."""
        plans = [record.plan for record in self._scales.values() if record.plan is not None]
        return {worker for plan in plans for instance in plan.instances for worker in instance.ranks}


def _hands_over(report: WorkerReport, entry: ModelEntry) -> bool:
    """Whether what an instance that drains still has goes to those that stay."""
    moves = entry.spec.tensor_parallel_size == 1 and report.version == entry.version
    return moves and report.state == "draining"


def _is_outdated(report: WorkerReport, entry: ModelEntry) -> bool:
    known = report.version is not None and entry.version is not None
    return known and report.version != entry.version and report.state in ("live", "serving")
