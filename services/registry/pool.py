"""The parameter pool (BlitzScale 5.3): the models, and which processes hold which blocks. Pure.

Holders are known from the reports of workers and hosts. What operators declared, and the manifests, are saved and
outlive the registry.
"""

from collections.abc import Collection, Iterator

from livescale.services.registry.holdings import Holdings, is_whole
from livescale.services.registry.host_caches import HostCaches
from livescale.services.registry.model import Content, RegisteredModel, content_of
from livescale.services.registry.placement import CopyDemand, FreeCopy, MakeCopy, NoRoom, why_no_room
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import HostReport, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import ModelChecked, ModelEntry, ModelRead
from livescale.shared.policy.invariants import check

KEPT_SECONDS = 10.0
# A plan that was made before may still have workers load.
REMOVING_SECONDS = 5.0


class Pool:
    """Models by name, and in `holds` the processes that have their parameters. Hosts keep copies as `caches` says."""

    def __init__(self, caches: HostCaches | None = None) -> None:
        self.holds, self.caches = Holdings(), caches or HostCaches()
        self._models: dict[str, RegisteredModel] = {}

    def names(self) -> list[str]:
        return sorted(self._models)

    def entries(self) -> list[ModelEntry]:
        return [self.entry(name) for name in self.names()]

    def entry(self, name: str) -> ModelEntry:
        model = self.registered(name)
        return model.entry(self.holds.holders(model.version))

    def next_entry(self, name: str) -> ModelEntry | None:
        """The version that is to replace this one, or None."""
        model = self.registered(name)
        return None if model.next is None else model.next.entry(model.created)

    def restore(self, entry: ModelEntry, manifest: Manifest | None, next: ModelEntry | None = None) -> None:
        """Take over what an earlier registry saved. Reports will tell which processes hold the model."""
        model = RegisteredModel(content_of(entry), entry.created, manifest=manifest)
        model.was_whole = manifest is not None
        model.next = None if next is None else content_of(next)
        model.removed_at = 0.0 if entry.state == "removing" else None
        self._models[entry.spec.name] = model

    def manifest(self, name: str) -> Manifest:
        """Raises Refusal 404 for an unknown model, 503 for one that cannot be loaded (yet)."""
        model = self.registered(name)
        if model.manifest is None:
            why = f"could not be read: {model.error}" if model.state == "failed" else "is still being read"
            raise Refusal(503, f"model {name!r} {why}", retry_after_ms=500)
        return model.manifest

    def versions(self, name: str) -> tuple[str, str | None] | None:
        """The version that the name stands for, and the one that is to replace it; None for an unknown model.

        A version is empty while it is not known.
        """
        model = self._models.get(name)
        if model is None:
            return None
        known = "" if model.manifest is None else model.version
        return known, None if model.next is None else model.next.version

    def registered(self, name: str) -> RegisteredModel:
        """Raises Refusal 404 for an unknown model."""
        if name not in self._models:
            raise Refusal(404, f"model {name!r} is not registered; registered are: {', '.join(self.names()) or '-'}")
        return self._models[name]

    def declared(self, name: str) -> ModelSpec | None:
        """What was last declared of a model, perhaps with content still on the way; None where it is not in service."""
        model = self._models.get(name)
        if model is None or model.removed_at is not None:
            return None
        return (model.next or model.current).spec

    def host_to_check(self, name: str) -> str:
        """A host that may know the model's files from an earlier read, else the least filled one.

        Raises Refusal 503 where no host is alive.
        """
        hosts = {memory.id: memory for memory in self.holds.memories()}
        if not hosts:
            raise Refusal(
                503, "no host service is alive to read checkpoints: start one with `livescale run host`", 1000
            )
        having = [id for id, host in hosts.items() if any(copy.model == name for copy in host.copies)]
        return min(having or hosts, key=lambda id: (hosts[id].used_bytes, id))

    def rescale(self, spec: ModelSpec) -> bool:
        """Change how a known model scales, without a host that could check its files.

        Returns whether the model is known with this path and form.
        """
        model = self._models.get(spec.name)
        if model is None or model.removed_at is not None or model.manifest is None or not model.current.is_from(spec):
            return False
        self._check_length(model, spec)
        model.current.spec = spec
        return True

    def register(self, spec: ModelSpec, checked: ModelChecked, created: int, now: float) -> None:
        """Add a model, change how a known one scales, or have a new version replace it once that is in memory.

        Raises Refusal 409 where no host has room, or while a removed model of this name still has instances.
        """
        model, content = self._models.get(spec.name), Content(spec, checked)
        if model is not None and model.removed_at is not None and self.holds.uses(spec.name):
            raise Refusal(409, f"model {spec.name!r} is being removed; try again when its instances are gone", 1000)
        if model is None or model.removed_at is not None:
            self._check_room(content, now)
            self._models[spec.name] = RegisteredModel(content, created, manifest=checked.manifest)
        elif model.manifest is None:
            self._reregister(model, content, now)
        elif content.version == model.version:
            self._check_length(model, spec)
            model.current.spec, model.next = spec, None
        else:
            self._replace(model, content, now)

    def _reregister(self, model: RegisteredModel, content: Content, now: float) -> None:
        """Register again a model that has not been in memory yet."""
        if model.error is None and model.current.is_from(content.spec):
            model.current.spec = content.spec
        else:
            self._check_room(content, now)
            self._models[content.spec.name] = RegisteredModel(content, model.created, manifest=content.checked.manifest)

    def _replace(self, model: RegisteredModel, content: Content, now: float) -> None:
        self._check_length(model, content.spec)
        if model.next is not None and model.next.is_from(content.spec):
            model.next.spec = content.spec
            return
        model.next = None
        self._check_room(content, now)
        model.next = content

    @staticmethod
    def _check_length(model: RegisteredModel, spec: ModelSpec) -> None:
        """Instances of two versions answer side by side, so both must accept requests of the same length."""
        old, new = model.spec.max_model_len, spec.max_model_len
        if old != new:
            raise Refusal(
                409,
                f"model {spec.name!r} is registered with max_model_len {old}, not {new}; remove it, or rename one",
            )

    def _check_room(self, content: Content, now: float) -> None:
        name, size_bytes = content.spec.name, content.checked.size_bytes
        why = why_no_room(self.holds.memories(), self._demands(now), name, size_bytes)
        if why is not None:
            raise Refusal(409, f"cache_bytes: {why}")
        self._check_arenas(content)

    def _check_arenas(self, content: Content) -> None:
        """Refuse a model that no worker can ever hold, as far as workers have told the sizes of their arenas."""
        needed = content.entry(0).rank_bytes
        largest = max((report.arena_bytes for report in self.holds.workers()), default=0)
        if 0 < largest < needed:
            raise Refusal(
                409,
                f"model {content.spec.name!r} takes {needed} bytes of a worker, and the largest arena has {largest}: "
                f"start workers with --arena-bytes {needed} or more",
            )

    def remove(self, name: str, now: float) -> ModelEntry:
        """Take no requests from now on; the model is forgotten once its instances have drained. Raises Refusal 404."""
        model = self.registered(name)
        model.next = None
        model.removed_at = now if model.removed_at is None else model.removed_at
        return self.entry(name)

    def forget_removed(self, now: float) -> list[str]:
        """Forget removed models that no worker uses any more. Returns their names."""
        removed = {name: model.removed_at for name, model in self._models.items() if model.removed_at is not None}
        over = [name for name, at in removed.items() if now - at >= REMOVING_SECONDS and not self.holds.uses(name)]
        for name in over:
            del self._models[name]
        return over

    def keep(self, name: str, now: float) -> str | None:
        """Have a host keep the model, as its last instance is to be given back.

        Returns what has to happen first, or None where the instance may go. Raises Refusal 404.
        """
        model = self.registered(name)
        if model.removed_at is not None:
            return None
        model.kept_until = now + KEPT_SECONDS
        if self.holds.is_on_host(model.version):
            return None
        self.plan(now)
        return model.in_the_way or f"a host must first have a copy of model {name!r}, and gets it now"

    def plan(self, now: float) -> list[MakeCopy | FreeCopy]:
        """The orders for hosts at this moment; what cannot be ordered is noted with its model."""
        orders = self.caches.plan(self.holds.memories(), self._demands(now), now)
        for model in self._models.values():
            model.in_the_way = None
        for order in orders:
            if isinstance(order, NoRoom):
                self._models[order.model].in_the_way = order.reason
        return [order for order in orders if not isinstance(order, NoRoom)]

    def _demands(self, now: float) -> list[CopyDemand]:
        models = [self._models[name] for name in self.names()]
        needed = [now < model.kept_until or not self.holds.is_served(model.version) for model in models]
        return [one for model, needs in zip(models, needed, strict=True) for one in model.demands(needed=needs)]

    def make(self, order: MakeCopy) -> tuple[Content, Manifest | None]:
        """Note that the host is commanded now. Returns what it is to get.

        With a manifest the parameters may come from one of `sources`, without one from disk only.
        """
        model = self._models[order.model]
        content = model.content(order.version)
        content.reader, content.has_begun = order.host, False
        return content, model.manifest if content is model.current else None

    def not_made(self, order: MakeCopy) -> bool:
        """Order it again later. Returns whether this host was still to make the copy; else it has been ordered anew."""
        model = self._models.get(order.model)
        return model is not None and model.forget_reader(order.host)

    def sources(self, order: MakeCopy) -> list[str]:
        """The ids of all holders that may send it; none where the host has some of it and goes on by itself."""
        has_begun = self.holds.has_begun(order.host, order.model, order.version)
        return [] if has_begun else self.holders(order.version)

    def holders(self, version: str) -> list[str]:
        """The ids of those that hold the whole version: hosts first, then workers, the least busy senders first."""
        hosts = {host.id for host in self.holds.hosts()}
        holders = self.holds.holders(version)
        return sorted(holders, key=lambda id: (id not in hosts, self.holds.flows_out(id), id))

    def read(self, event: ModelRead) -> None:
        """A host has the model in memory, or could not read it."""
        if (model := self._models.get(event.model)) is None:
            return
        model.read(event, is_held=bool(self.holds.holders(model.version)))
        if event.manifest is not None:
            self.holds.hold(event.host, event.model, event.manifest)

    def doubt_readers(self) -> None:
        """Ask all hosts again, as their words may have been lost; a host goes on, and tells again what it has."""
        for model in self._models.values():
            model.forget_readers()

    def on_worker(self, report: WorkerReport) -> None:
        self.holds.on_worker(report)

    def on_host(self, report: HostReport) -> None:
        self.holds.on_host(report)
        for holding in report.holdings:
            if holding.model in self._models and is_whole(holding, holding.version):
                self._models[holding.model].doubt_reader(report, holding.version)

    def doubt_host(self, id: str) -> None:
        """Ask this host again, as it may not have heard what it was asked; one that has goes on."""
        for model in self._models.values():
            model.forget_reader(id)

    def gone(self, id: str) -> None:
        """Forget what this member said: it is dead, or has joined anew."""
        self.holds.gone(id)
        self.doubt_host(id)

    def without_copy(self) -> list[str]:
        """Models of which no whole copy is in any memory, whether or not one is being made."""
        there = [(name, model) for name, model in sorted(self._models.items()) if model.removed_at is None]
        return [name for name, model in there if model.state == "failed" or not self.holds.holders(model.version)]

    def check_invariants(self, alive: Collection[str]) -> None:
        """Raises InvariantBroken unless only members that are alive hold or read, and only blocks that exist."""
        check(self._broken(alive))

    def _broken(self, alive: Collection[str]) -> Iterator[str]:
        yield from (f"pool: {id} holds parameters and is dead" for id, _ in self.holds.all() if id not in alive)
        for id, holding in self.holds.all():
            if not set(holding.ready) <= set(range(holding.total)):
                yield f"pool: {id} holds blocks {holding.ready} of {holding.total} of {holding.model}"
        for name, model in self._models.items():
            for content in model.contents:
                if content.reader is not None and content.reader not in alive:
                    yield f"pool: {content.reader} reads {name} and is dead"
            if model.next is not None and model.manifest is None:
                yield f"pool: {name} is to be replaced before it was there"
