"""Answers what a host is asked of checkpoints on its disk: to check them, and to read them into its memory."""

import asyncio
from collections.abc import Callable

from livescale.services.host.cache import CacheFull, Held
from livescale.services.host.disk import Disk
from livescale.services.host.memory import Memory
from livescale.services.host.stored import Stored
from livescale.shared.bus.contract import Context, Refusal
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import CheckModel, ModelChecked, ReadModel
from livescale.shared.messages.transfers import FromDisk
from livescale.shared.model.checkpoint import CheckpointError

TURN_SECONDS = 4.0  # less than the planner waits for the answer to a send


class CheckpointReader:
    """Opens checkpoints and hands them to the host's memory, which reads them one after the other.

    `announce` tells again of a model that is whole already.
    """

    def __init__(self, disk: Disk, memory: Memory, announce: Callable[[Held], None]) -> None:
        self._disk = disk
        self._memory = memory
        self._announce = announce

    async def check(self, command: CheckModel, context: Context) -> ModelChecked:
        """Find a checkpoint well-formed, without reading any parameter. Raises Refusal, as all of these do."""
        spec = command.spec
        stored = await self._open(spec)
        try:
            return self._checked(spec, stored)
        finally:
            stored.close()

    async def read(self, command: ReadModel, context: Context) -> ModelChecked:
        """Begin to read a model that is neither here nor on its way.

        The answer comes as soon as the checkpoint is checked; `ModelRead` tells when the model is whole, and tells it
        again of one that already is.
        """
        spec = command.spec
        whole = self._memory.find_whole(spec)
        try:
            stored = await self._open(spec)
        except Refusal:
            if whole is None:
                raise
            return self._tell_again(spec, whole)
        try:
            checked = self._checked(spec, stored)
            same = self._begin(spec, stored)
        except Refusal:
            stored.close()
            raise
        if same is not None and same.is_whole:
            self._announce(same)
        return checked

    async def bring(self, wanted: FromDisk, traceparent: str | None = None) -> None:
        """Return once this version is here, or is being read so that it can be sent meanwhile. `traceparent` names the
        span of the scale that waits for it."""
        version = wanted.manifest.version
        if self._memory.cache.find(version) is None:
            stored = await self._open(wanted.spec)
            try:
                stored.expect(wanted.manifest)
                self._begin(wanted.spec, stored)
            except (Refusal, CheckpointError) as error:
                stored.close()
                raise error if isinstance(error, Refusal) else Refusal(409, str(error)) from error
        self._memory.trace(version, traceparent)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._memory.turn(version)
        except TimeoutError:
            raise Refusal(
                409, f"version {version} waits until other models are read; try again later", retry_after_ms=1000
            ) from None

    async def _open(self, spec: ModelSpec) -> Stored:
        try:
            return await self._disk.open(spec)
        except (CheckpointError, OSError) as error:
            raise Refusal(422, f"model {spec.name!r}: {error}") from error

    def _begin(self, spec: ModelSpec, stored: Stored) -> Held | None:
        """Begin to read from `stored`, unless the same content is here or on its way.

        In that case `stored` is closed and the content that is there is returned.
        """
        same = self._memory.find_same(spec, stored)
        if same is not None:
            stored.close()
            return same
        if self._memory.is_reading(spec.name):
            raise Refusal(409, f"model {spec.name!r} is still being read from other files; try again when it is whole")
        try:
            self._memory.read(spec, stored)
        except CacheFull as error:
            raise Refusal(409, str(error)) from error
        return None

    def _tell_again(self, spec: ModelSpec, held: Held) -> ModelChecked:
        """Answer for a model that is in memory, although its files are gone."""
        self._announce(held)
        limit = 1 if held.manifest is None else held.manifest.config.max_position_embeddings
        return ModelChecked(
            size_bytes=held.size_bytes,
            blocks=held.total,
            max_model_len=spec.max_model_len or limit,
            manifest=held.manifest,
        )

    def _checked(self, spec: ModelSpec, stored: Stored) -> ModelChecked:
        same = self._memory.find_same(spec, stored)
        return ModelChecked(
            size_bytes=stored.checkpoint.size_bytes,
            blocks=len(stored.checkpoint.layouts),
            max_model_len=_max_model_len(spec, stored),
            manifest=stored.manifest if same is None else same.manifest,
        )


def _max_model_len(spec: ModelSpec, stored: Stored) -> int:
    limit = stored.checkpoint.config.max_position_embeddings
    if spec.max_model_len is not None and spec.max_model_len > limit:
        raise Refusal(
            422, f"model {spec.name!r}: max_model_len {spec.max_model_len} is more than the checkpoint's own {limit}"
        )
    return spec.max_model_len or limit
