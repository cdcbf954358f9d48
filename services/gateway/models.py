"""The models that the registry has registered, and the text side of their checkpoints."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from livescale.services.gateway.checkpoint_reading import BadCheckpoint, load_checkpoint_text
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.errors import (
    ApiError,
    bad_checkpoint,
    bad_request,
    from_bus,
    internal,
    model_not_found,
    overloaded,
    timed_out,
)
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.registry import AskModels, ModelEntry
from livescale.shared.messages.requests import AdapterUse
from livescale.shared.model.checkpoint import CheckpointError, resolve_model_path
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import MODELS

REFRESH_SECONDS = 1.0
REFRESH_TIMEOUT_SECONDS = 2.0
# Encoding a text of this length takes about a millisecond; longer texts are encoded in a thread.
LONG_TEXT = 4_096

log = structlog.get_logger()


@dataclass(frozen=True)
class Served:
    """What a name in a request stands for: a model, with an adapter or without."""

    name: str
    entry: ModelEntry
    adapter: AdapterUse | None = None


class RegisteredModels:
    """The registry's list of models; `run` keeps it fresh. Tokenizers are loaded when they are first needed, and
    kept."""

    def __init__(self, bus: Bus, clock: Clock, executor: Executor, metrics: GatewayMetrics) -> None:
        self._bus = bus
        self._clock = clock
        self._executor = executor
        self._metrics = metrics
        self._entries: dict[str, ModelEntry] | None = None
        self._texts: dict[tuple[str, str | None], asyncio.Future[CheckpointText]] = {}

    @property
    def entries(self) -> list[ModelEntry]:
        """All models by name; empty while the registry has never answered."""
        return [entry for _, entry in sorted((self._entries or {}).items())]

    async def run(self) -> None:
        """Ask the registry for its list every second."""
        while True:
            try:
                await self.refresh()
            except BusError as error:
                log.debug("models_not_refreshed", error=str(error))
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Ask the registry for its list. Raises BusError; the known list then stays."""
        models = (await self._bus.call(MODELS, AskModels(), timeout=REFRESH_TIMEOUT_SECONDS)).models
        self._entries = {entry.spec.name: entry for entry in models}
        kept = {_text_key(entry) for entry in models}
        self._texts = {key: text for key, text in self._texts.items() if key in kept}
        for entry in models:
            self._metrics.of_model(entry.spec.name)  # its metrics are shown at zero from now on

    async def find(self, model: str, *, failed: bool = False) -> ModelEntry:
        """Return a model's entry. Raises ApiError: 404 where the model is not registered, 503 where the registry cannot
        be asked, or where its checkpoint could not be read and `failed` is false."""
        entry = (self._entries or {}).get(model)
        if entry is None or _is_being_read(entry):  # by a list that may be a second old
            await self.refresh_for_client()
            entry = (self._entries or {}).get(model)
        if entry is None or entry.state == "removing":
            raise model_not_found(model)
        if entry.state == "failed" and not failed:
            raise overloaded(f"The model {model!r} could not be read: {entry.error}", code="model_failed")
        return entry

    async def find_or_only(self, model: str, field: str = "model") -> ModelEntry:
        """Return a model's entry, or the only one's where the client names none, with an empty name. Raises ApiError
        as `find` does, and 400 where there is another number of models; `field` is where clients name it."""
        if model:
            return await self.find(model)
        if self._entries is None:
            await self.refresh_for_client()
        names = [one.spec.name for one in self.entries if one.state != "removing" and one.spec.base is None]
        if len(names) != 1:
            raise bad_request(f"{field!r} is missing; {len(names)} are registered, GET /v1/models lists them.", field)
        return await self.find(names[0])

    async def find_served(self, model: str) -> Served:
        """Return the model that serves a name, and what requests say of the adapter where the name is one's. Raises
        ApiError as `find_or_only` does, and 503 for an adapter that is still being read."""
        entry = await self.find_or_only(model)
        if entry.spec.base is None:
            return Served(entry.spec.name, entry)
        if entry.version is None:
            raise _still_being_read(entry)
        base = await self.find(entry.spec.base)
        return Served(entry.spec.name, base, AdapterUse(name=entry.spec.name, version=entry.version))

    async def text(self, entry: ModelEntry) -> CheckpointText:
        """Return the text side of a model's checkpoint. Raises ApiError 500 where the gateway cannot read it."""
        key = _text_key(entry)
        if key not in self._texts:
            loading = asyncio.get_running_loop().run_in_executor(
                self._executor, _load_text, entry.spec.path, self._clock.wall
            )
            self._texts[key] = asyncio.ensure_future(loading)
        try:
            return await asyncio.shield(self._texts[key])  # other requests may wait for the same text
        except (BadCheckpoint, CheckpointError) as error:
            self._texts.pop(key, None)
            log.error("checkpoint_text_unreadable", model=entry.spec.name, error=str(error))
            raise internal(f"The gateway cannot read the tokenizer of {entry.spec.name!r}: {error}") from None

    async def check_text(self, name: str, path: str, seconds: float) -> None:
        """Read the text side of a model that is to be registered. Raises ApiError 422 where it cannot be read here, 504
        where that takes longer than `seconds`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await loop.run_in_executor(self._executor, _load_text, path, self._clock.wall)
        except (BadCheckpoint, CheckpointError) as error:
            raise bad_checkpoint(f"model {name!r}: {error}") from None
        except TimeoutError:
            raise timed_out(f"model {name!r}: {path} could not be fetched within {seconds:.0f} s") from None

    async def encode(self, text: CheckpointText, prompt: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a prompt. A long prompt is encoded in a thread, as the tokenizer releases the interpreter's
        lock."""
        if len(prompt) < LONG_TEXT:
            return text.encode(prompt, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: text.encode(prompt, add_special_tokens=add_special_tokens)
        )

    async def refresh_for_client(self) -> None:
        """Ask for a newer list, and do without where the registry does not answer. Raises ApiError 503 where there has
        never been a list."""
        try:
            await self.refresh()
        except BusError as error:
            if self._entries is None:
                raise from_bus(error) from None


def _load_text(path: str, clock: Callable[[], float]) -> CheckpointText:
    return load_checkpoint_text(resolve_model_path(path, parameters=False), clock)


def _is_being_read(entry: ModelEntry) -> bool:
    """Whether requests for the name have to be refused yet: an adapter's version or a model's length is not known."""
    return entry.max_model_len <= 0 if entry.spec.base is None else entry.version is None


def _still_being_read(entry: ModelEntry) -> ApiError:
    kind = "model" if entry.spec.base is None else "adapter"
    return overloaded(
        f"The {kind} {entry.spec.name!r} is still being read; try again in a moment.", 500, code="model_loading"
    )


def _text_key(entry: ModelEntry) -> tuple[str, str | None]:
    return entry.spec.path, entry.version


def context_tokens(entry: ModelEntry) -> int:
    """The number of tokens that a request may have, prompt and output together. Raises ApiError 503 while it is
    unknown."""
    if _is_being_read(entry):
        raise _still_being_read(entry)
    return entry.max_model_len
