"""The parameter pool (BlitzScale 5.3): which models there are, and who holds which blocks. Pure.

Built from what workers and hosts report; only the declared part (ModelSpec) has to outlive the registry.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from shared.bus.contract import Refusal
from shared.invariants import check
from shared.messages.membership import Holding, HostReport, ModelEntry, WorkerReport
from shared.messages.parameters import Manifest, ModelSpec
from shared.messages.scaling import ModelChecked, ModelRead

LEAST = 0.001  # of a scaling bound: capacities are divided by it
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


def check_spec(spec: ModelSpec) -> None:
    """Raises Refusal 400 that names the first field that cannot be."""
    bounds = spec.bounds
    rules = (
        (NAME.fullmatch(spec.name) is not None, "name must be 1 to 128 of letters, digits and . _ / -"),
        (spec.path != "", "path must name a directory"),
        (spec.min_instances >= 0, "min_instances must be 0 or more"),
        (spec.max_instances >= max(1, spec.min_instances), "max_instances must be at least 1 and min_instances"),
        (LEAST <= bounds.prefill_lo <= bounds.prefill_hi, f"bounds: {LEAST} <= prefill_lo <= prefill_hi must hold"),
        (
            LEAST <= bounds.decode_lo <= bounds.decode_hi <= 1,
            f"bounds: {LEAST} <= decode_lo <= decode_hi <= 1 must hold",
        ),
        (spec.upscale_delay_s >= 0, "upscale_delay_s must be 0 or more"),
        (spec.downscale_delay_s >= 0, "downscale_delay_s must be 0 or more"),
        (spec.downscale_to_zero_delay_s >= 0, "downscale_to_zero_delay_s must be 0 or more"),
        (spec.max_model_len is None or spec.max_model_len > 0, "max_model_len must be 1 or more"),
    )
    for holds, message in rules:
        if not holds:
            raise Refusal(400, f"model {spec.name!r}: {message}")


@dataclass(frozen=True)
class ReadOrder:
    """Have this host read this model into its cache."""

    host: str
    spec: ModelSpec
    reason: str


@dataclass
class _Model:
    spec: ModelSpec
    created: int
    state: Literal["reading", "ready", "failed"] = "reading"
    reader: str | None = None  # the host that was told to read it, until it is whole there or the host is gone
    checked: ModelChecked | None = None
    manifest: Manifest | None = None
    was_whole: bool = False  # in some host's memory, since this registry knows it
    error: str | None = None

    def entry(self) -> ModelEntry:
        checked, manifest = self.checked, self.manifest
        return ModelEntry(
            spec=self.spec,
            state=self.state,
            version=None if manifest is None else manifest.version,
            size_bytes=0 if checked is None else checked.size_bytes,
            blocks=0 if checked is None else checked.blocks,
            max_model_len=0 if checked is None else checked.max_model_len,
            created=self.created,
            error=self.error,
        )


class Pool:
    """Models by name, and the last report of everyone who is alive and can hold parameters."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._workers: dict[str, WorkerReport] = {}
        self._hosts: dict[str, HostReport] = {}

    def entries(self) -> list[ModelEntry]:
        """Models whose checkpoint has been checked."""
        return [model.entry() for _, model in sorted(self._models.items()) if model.checked is not None]

    def restore(self, entry: ModelEntry) -> None:
        """Take over what an earlier registry declared; who holds it, reports will tell."""
        checked = ModelChecked(size_bytes=entry.size_bytes, blocks=entry.blocks, max_model_len=entry.max_model_len)
        self._models[entry.spec.name] = _Model(entry.spec, entry.created, checked=checked)

    def entry(self, name: str) -> ModelEntry:
        return self._model(name).entry()

    def workers(self) -> list[WorkerReport]:
        return [self._workers[id] for id in sorted(self._workers)]

    def hosts(self) -> list[HostReport]:
        return [self._hosts[id] for id in sorted(self._hosts)]

    def manifest(self, name: str) -> Manifest:
        """Raises Refusal 404 for an unknown model, 503 for one that cannot be loaded (yet)."""
        model = self._model(name)
        if model.manifest is None:
            why = f"could not be read: {model.error}" if model.state == "failed" else "is still being read"
            raise Refusal(503, f"model {name!r} {why}", retry_after_ms=500)
        return model.manifest

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            raise Refusal(404, f"model {name!r} is not registered; there are: {', '.join(sorted(self._models)) or '-'}")
        return self._models[name]

    def declare(self, spec: ModelSpec, created: int) -> bool:
        """Add a model, or change how a known one scales. Returns whether it has to be read.

        Raises Refusal: 400 for values that cannot be, 409 where the name stands for another checkpoint.
        """
        check_spec(spec)
        known = self._models.get(spec.name)
        if known is None or known.state == "failed":
            self._models[spec.name] = _Model(spec, created)
            return True
        for field in ("path", "dtype", "max_model_len"):
            old, new = getattr(known.spec, field), getattr(spec, field)
            if old != new:
                raise Refusal(409, f"model {spec.name!r} is registered with {field} {old!r}, not {new!r}; rename one")
        known.spec = spec
        return False

    def withdraw(self, name: str) -> None:
        """Forget a model that was refused."""
        self._models.pop(name, None)

    def host_to_read(self, spec: ModelSpec) -> ReadOrder:
        """A host that has it already, else the least filled one. Raises Refusal 503 where there is none."""
        if not self._hosts:
            raise Refusal(
                503, "no host service is alive to read checkpoints: start one with `livescale run host`", 1000
            )
        having = [id for id, host in self._hosts.items() if any(h.model == spec.name for h in host.holdings)]
        host = min(having or self._hosts, key=lambda id: (self._filled(id), id))
        return ReadOrder(host, spec, f"{host} {'has it' if having else 'is the least filled host'}")

    def _filled(self, host: str) -> int:
        reading = sum(m.checked.size_bytes for m in self._models.values() if m.reader == host and m.checked)
        return self._hosts[host].cache_bytes + reading

    def reading(self, name: str, host: str) -> None:
        """This host was told to read the model."""
        self._models[name].reader = host

    def checked(self, name: str, answer: ModelChecked) -> None:
        """The host found the checkpoint well-formed; reading has begun. With its content its version is known."""
        model = self._model(name)
        model.checked = answer
        if answer.manifest is not None:
            model.manifest = answer.manifest
            model.state = "ready" if model.error is None else model.state

    def read(self, event: ModelRead) -> None:
        """A host has the model in memory, or could not read it."""
        model = self._models.get(event.model)
        if model is None:
            return
        if model.reader == event.host:
            model.reader = None
        if event.manifest is not None:
            model.state, model.manifest, model.error, model.was_whole = "ready", event.manifest, None, True
            self._hold(event.host, event.model, event.manifest)
        else:
            model.error = event.error or f"{event.host} gave no reason"
            # What has been whole before can be again; a scale under way goes on as soon as it is read once more.
            model.state = model.state if model.was_whole else "failed"

    def _hold(self, host: str, name: str, manifest: Manifest) -> None:
        """The host's next report will say so too; until then nobody has to read the model again."""
        report = self._hosts.get(host)
        if report is not None:
            indices = [block.index for block in manifest.blocks]
            whole = Holding(model=name, version=manifest.version, ready=indices, total=len(indices))
            others = [holding for holding in report.holdings if holding.version != manifest.version]
            self._hosts[host] = replace(report, holdings=[*others, whole])

    def not_reading(self, name: str, host: str) -> None:
        """The host could not be asked, or did not answer: ask again later."""
        if name in self._models and self._models[name].reader == host:
            self._models[name].reader = None

    def doubt_readers(self) -> None:
        """What they said may have been lost. Asked again, a host goes on, and says again what it has."""
        for model in self._models.values():
            model.reader = None

    def on_worker(self, report: WorkerReport) -> None:
        self._workers[report.id] = report

    def on_host(self, report: HostReport) -> None:
        self._hosts[report.id] = report
        whole = {holding.model for holding in report.holdings if len(holding.ready) == holding.total}
        for name, model in self._models.items():
            if model.reader == report.id and name in whole:
                model.reader = None  # what it said of it may have been lost: asked again, it says it again

    def gone(self, id: str) -> None:
        """A member is dead or has joined anew: nothing it said counts any more."""
        self._workers.pop(id, None)
        self._hosts.pop(id, None)
        for model in self._models.values():
            if model.reader == id:
                model.reader = None

    def holders(self, version: str) -> list[str]:
        """Ids of all that hold every block of this version."""
        return sorted(
            id for id, holding in self._holdings() if holding.version == version and len(holding.ready) == holding.total
        )

    def _holdings(self) -> Iterator[tuple[str, Holding]]:
        for id, worker in self._workers.items():
            if worker.holding is not None:
                yield id, worker.holding
        for id, host in self._hosts.items():
            for holding in host.holdings:
                yield id, holding

    def without_copy(self) -> list[str]:
        """Models of which no whole copy is in any memory, whether or not one is being read."""
        return [name for name, model in sorted(self._models.items()) if model.checked and not self._has_copy(model)]

    def _has_copy(self, model: _Model) -> bool:
        """One that could not be read has none of its own, though another of the same version may lie there."""
        return model.state != "failed" and model.manifest is not None and bool(self.holders(model.manifest.version))

    def to_read(self) -> list[ReadOrder]:
        """Copies that have to be made anew, those that could not be read included; none while no host is alive."""
        missing = [self._models[name] for name in self.without_copy()] if self._hosts else []
        return [self.host_to_read(one.spec) for one in missing if one.reader is None]

    def check_invariants(self, alive: Collection[str]) -> None:
        """Only who is alive holds or reads anything, and no more than there is. Raises InvariantBroken."""
        check(self._broken(alive))

    def _broken(self, alive: Collection[str]) -> Iterator[str]:
        yield from (f"pool: {id} holds parameters and is dead" for id, _ in self._holdings() if id not in alive)
        for id, holding in self._holdings():
            if not set(holding.ready) <= set(range(holding.total)):
                yield f"pool: {id} holds blocks {holding.ready} of {holding.total} of {holding.model}"
        for name, model in self._models.items():
            if model.reader is not None and model.reader not in alive:
                yield f"pool: {model.reader} reads {name} and is dead"
            if model.state != "failed" and (model.state == "ready") != (model.manifest is not None):
                yield f"pool: {name} is {model.state} {'with' if model.manifest else 'without'} a manifest"
