"""What operators ask of models: to register one, to remove one, to keep one that has no instance left."""

import structlog

from livescale.services.registry.adapter_versions import AdapterVersions
from livescale.services.registry.copies import READ_TIMEOUT_SECONDS, CopyReconciler
from livescale.services.registry.model import adapter_spec, check_spec, complete_spec
from livescale.services.registry.pool import Pool
from livescale.shared.bus.contract import Ack, BusError, Context, Endpoint, Refusal
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import (
    AdapterContent,
    AskAdapter,
    AskModels,
    CheckModel,
    ModelChecked,
    ModelEntry,
    ModelList,
    Named,
    Register,
)
from livescale.shared.process.run import World
from livescale.shared.subjects import ADAPTER, CHECK_MODEL, KEEP, MANIFEST, MODELS, REGISTER, REMOVE

log = structlog.get_logger()


class Models:
    """Answers for the pool. What a question changes is saved, and `copies` makes hosts follow it.

    `default_spec` says what is not said of a model that is new.
    """

    def __init__(
        self, world: World, pool: Pool, copies: CopyReconciler, adapters: AdapterVersions, default_spec: ModelSpec
    ) -> None:
        self._bus, self._clock = world.bus, world.clock
        self._pool = pool
        self._copies = copies
        self._default_spec = default_spec
        self._adapters = adapters
        self.endpoints = [
            Endpoint(MODELS, self._models),
            Endpoint(REGISTER, self._register, limit=16),
            Endpoint(REMOVE, self._remove),
            Endpoint(KEEP, self._keep),
            Endpoint(MANIFEST, self._manifest),
            Endpoint(ADAPTER, self._adapter),
        ]

    async def _models(self, ask: AskModels, context: Context) -> ModelList:
        return ModelList(models=self._pool.entries())

    async def _manifest(self, named: Named, context: Context) -> Manifest:
        return self._pool.manifest(named.model)

    async def _adapter(self, ask: AskAdapter, context: Context) -> AdapterContent:
        if not self._adapters.knows(ask.version):
            self._note_adapters()
        return self._adapters.find(ask.version)

    def _note_adapters(self) -> None:
        models = map(self._pool.registered, self._pool.names())
        told = ((model.spec, model.manifest) for model in models if model.spec.base is not None)
        here = [AdapterContent(spec=spec, manifest=manifest) for spec, manifest in told if manifest is not None]
        self._adapters.note(here, self._clock.now())

    async def _register(self, register: Register, context: Context) -> ModelEntry:
        """A model is there once a host has found its checkpoint well-formed, and hosts have room for it."""
        self._note_adapters()
        known = self._pool.declared(register.spec.name)
        spec = complete_spec(register.spec, register.named, known or self._default_spec)
        check_spec(spec)
        spec = self._of_base(spec)
        try:
            host = self._pool.host_to_check(spec.name)
        except Refusal:
            if not self._pool.rescale(spec):
                raise
        else:
            checked = await self._check(host, spec, self._seconds_left(context))
            self._pool.register(spec, checked, int(self._clock.wall()), self._clock.now())
        self._copies.save(spec.name)
        self._copies.look()
        entry = self._pool.entry(spec.name)
        log.info("model_registered", model=spec.name, size_bytes=entry.size_bytes, blocks=entry.blocks)
        return entry

    def _of_base(self, spec: ModelSpec) -> ModelSpec:
        """An adapter with what follows from its base model; any other model as it is.

        Raises Refusal: 404 for a base that is not registered, 409 for one that takes no adapters, and for a name that
        stands for something else.
        """
        known = self._pool.declared(spec.name)
        if known is not None and known.base != spec.base:
            raise Refusal(409, f"model {spec.name!r} is registered with base {known.base}; remove it, or rename one")
        if spec.base is None:
            return spec
        base = self._pool.declared(spec.base)
        if base is None:
            raise Refusal(404, f"adapter {spec.name!r}: its base {spec.base!r} is not registered; register that first")
        return adapter_spec(spec, base)

    def _seconds_left(self, context: Context) -> float:
        return READ_TIMEOUT_SECONDS if context.deadline is None else context.deadline - self._clock.wall()

    async def _check(self, host: str, spec: ModelSpec, timeout: float) -> ModelChecked:
        try:
            return await self._bus.call(CHECK_MODEL, CheckModel(spec=spec), timeout=timeout, id=host)
        except Refusal:
            raise
        except BusError as error:
            raise Refusal(503, "the host did not answer", retry_after_ms=1000) from error

    async def _remove(self, named: Named, context: Context) -> ModelEntry:
        """This is answered at once, and then the model's instances drain."""
        self._note_adapters()
        entry = self._pool.remove(named.model, self._clock.now())
        log.info("model_being_removed", model=named.model)
        self._copies.save(named.model)
        self._copies.look()
        return entry

    async def _keep(self, named: Named, context: Context) -> Ack:
        """The model's last instance may be given back once this is answered without a refusal."""
        missing = self._pool.keep(named.model, self._clock.now())
        if missing is not None:
            self._copies.look()
            raise Refusal(503, missing, retry_after_ms=500)
        return Ack()
