"""Gives workers the vocabularies of models, which the gateway has read from the checkpoints."""

import asyncio
import hashlib
import zlib
from concurrent.futures import Executor
from dataclasses import dataclass

from livescale.services.gateway.checkpoint_reading import TOKENIZER_LIMIT_BYTES
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.models import RegisteredModels
from livescale.shared.bus.contract import Bus, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import (
    MOST_VOCABULARY_BYTES,
    PART_BYTES,
    AskVocabulary,
    VocabularyPart,
)
from livescale.shared.model.checkpoint import CheckpointError, read_file, resolve_model_path
from livescale.shared.subjects import VOCABULARY

COMPRESSION = 1  # of zlib: a second for the largest vocabularies
KEPT = 4


@dataclass(frozen=True)
class CompressedTokenizer:
    """A tokenizer.json, compressed as workers get it, and its digest."""

    data: bytes
    digest: str


class Vocabularies:
    """Answers VOCABULARY. The last few are kept, compressed."""

    def __init__(self, models: RegisteredModels, executor: Executor) -> None:
        self._models = models
        self._executor = executor
        self._kept: dict[tuple[str, str | None], asyncio.Future[CompressedTokenizer]] = {}

    async def serve(self, bus: Bus, info: ServiceInfo) -> None:
        """Answer the bus call VOCABULARY from now on."""
        await bus.serve(info, [Endpoint(VOCABULARY, self.answer, limit=64)])

    async def answer(self, ask: AskVocabulary, context: Context) -> VocabularyPart:
        """Answer VOCABULARY. Raises Refusal: 404 for a model or version that is not registered, 409 where its files
        cannot be used."""
        try:
            entry = await self._models.find(ask.model)
            if entry.version not in (None, ask.version):
                raise Refusal(404, f"version {ask.version} of {ask.model} is not registered")
            tokenizer = await self._tokenizer(entry)
            text = await self._models.text(entry)
        except (ApiError, CheckpointError, OSError) as error:
            raise Refusal(409, str(error)) from None
        return VocabularyPart(
            data=tokenizer.data[ask.offset : ask.offset + PART_BYTES],
            total_bytes=len(tokenizer.data),
            digest=tokenizer.digest,
            ends=list(text.eos_token_ids),
        )

    async def _tokenizer(self, entry: ModelEntry) -> CompressedTokenizer:
        key = entry.spec.path, entry.version
        if key not in self._kept:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            loading = asyncio.get_running_loop().run_in_executor(self._executor, compressed_tokenizer, entry.spec.path)
            self._kept[key] = asyncio.ensure_future(loading)
        try:
            return await asyncio.shield(self._kept[key])  # others may wait for it, too
        except (CheckpointError, OSError):
            self._kept.pop(key, None)
            raise


def compressed_tokenizer(path: str) -> CompressedTokenizer:
    """Read and compress the tokenizer of the checkpoint at `path`. Raises CheckpointError and OSError."""
    directory = resolve_model_path(path, parameters=False)
    data = zlib.compress(read_file(directory / "tokenizer.json", TOKENIZER_LIMIT_BYTES), COMPRESSION)
    if len(data) > MOST_VOCABULARY_BYTES:
        raise CheckpointError(f"{directory}/tokenizer.json has {len(data)} bytes when compressed, which is too much")
    return CompressedTokenizer(data, hashlib.blake2b(data, digest_size=16).hexdigest())
