"""The vocabulary of the model that a worker loads, and the requests that wait for what their grammars permit."""

import asyncio
import hashlib

import structlog

from livescale.services.worker.grammars.mask_computer import MasksFailed
from livescale.services.worker.grammars.masks import NEVER, Vocabulary
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.scheduling.sequence import Sequence
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.requests import AskVocabulary, VocabularyPart
from livescale.shared.messages.transfers import Load
from livescale.shared.subjects import VOCABULARY

ASK_SECONDS = 5.0
RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 8.0
NO_VOCABULARY = "Grammars cannot be applied here, as the model's vocabulary is missing."
WAIT_SECONDS = 30.0  # that a request waits for the vocabulary at most

log = structlog.get_logger()


class BadVocabulary(Exception):
    """Parts of a vocabulary do not fit each other."""


class VocabularyLearner:
    """Has the engine learn the vocabulary of its model, while parameters arrive."""

    def __init__(self, context: WorkerContext, serving: ServingLoop) -> None:
        self._bus = context.bus
        self._runner = context.runner
        self._start = context.start
        self._serving = serving
        self._learning: asyncio.Task[None] | None = None
        self._failure: str | None = None  # why grammars cannot be applied to this model
        serving.holds.append(self.hold)

    def load(self, command: Load) -> None:
        """Learn the vocabulary of what is loaded, once the engine is made for it."""
        self.end()
        generates = command.manifest.config.pooling == "none"
        if generates and self._runner.applies_grammars and command.rank == 0:
            self._learning = self._start(self._learn(command), f"vocabulary {command.model}")

    def end(self) -> None:
        """Stop learning the vocabulary, as the model is let go of."""
        if self._learning is not None:
            self._learning.cancel()
        self._learning = self._failure = None

    def hold(self, sequence: Sequence) -> None:
        """Run no step for a request with a grammar until it is known what it permits first."""
        if self._runner.applies_grammars and sequence.request.sampling.grammar:
            sequence.awaits_mask = True
            self._start(self._first_mask(sequence), f"grammar {sequence.request_id}")

    async def _first_mask(self, sequence: Sequence) -> None:
        failure = None
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                if self._learning is not None:
                    await asyncio.wait([self._learning])
                failure = self._failure
                await self._runner.first_mask(sequence.request, sequence.tokens[sequence.prompt_tokens :])
        except TimeoutError:
            failure = NO_VOCABULARY
        if failure is not None:
            self._serving.give_up(sequence, failure, code=503)
        sequence.awaits_mask = False
        self._serving.wake()

    async def _learn(self, command: Load) -> None:
        """Learn the vocabulary. Gateways are asked for ever, as one may come later."""
        model, version, pause = command.model, command.manifest.version, RETRY_SECONDS
        while True:
            try:
                vocabulary = await fetch_vocabulary(self._bus, model, version)
                await self._runner.learn(vocabulary, command.manifest.config.vocab_size)
            except MasksFailed as error:
                log.warning("vocabulary_not_learned", model=model, error=str(error))
                self._failure = f"{NEVER} {error}."
                return
            except (BusError, BadVocabulary) as error:
                log.info("vocabulary_not_here", model=model, error=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
            else:
                return


async def fetch_vocabulary(bus: Bus, model: str, version: str) -> Vocabulary:
    """Ask gateways for a model's vocabulary, part by part. Raises BusError and BadVocabulary."""
    data = bytearray()
    while True:
        ask = AskVocabulary(model=model, version=version, offset=len(data))
        part = await bus.call(VOCABULARY, ask, timeout=ASK_SECONDS)
        data += part.data
        if not part.data or len(data) > part.total_bytes:
            raise BadVocabulary(f"{len(data)} bytes came, {part.total_bytes} were told of")
        if len(data) == part.total_bytes:
            return _checked(bytes(data), part)


def _checked(data: bytes, part: VocabularyPart) -> Vocabulary:
    if hashlib.blake2b(data, digest_size=16).hexdigest() != part.digest:
        raise BadVocabulary("its digest is not that of its parts")
    return Vocabulary(data, tuple(part.ends))
