"""Tries clients' grammars in a process beside the gateway, before any worker sees them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

import msgspec
import structlog

from livescale.services.gateway.bounded_work import BoundedWork
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.constraints import Constraint
from livescale.services.gateway.errors import bad_request, overloaded
from livescale.services.gateway.grammar_process import MEMORY_BYTES, Trial, Tried

PROCESSOR_SECONDS = 0.3  # for one grammar; a schema of 64 KiB takes up to half of it
LARGEST_ANSWER = 1 << 20
WAIT_SECONDS = 5.0  # that a grammar waits for the trials of others
KEPT = 256  # grammars whose trial is remembered

log = structlog.get_logger()


class Grammars(BoundedWork):
    """Tries one grammar after the other, and remembers how the last ones did.

    Of each client one at most waits for the trials of others, so that many grammars of one do not hold up another's.
    """

    def __init__(self, processor_seconds: float = PROCESSOR_SECONDS) -> None:
        super().__init__("grammar_process", processor_seconds, MEMORY_BYTES, LARGEST_ANSWER)
        self._turns = WeakValueDictionary[str, asyncio.Lock]()  # of each client
        self._tried: dict[bytes, Tried] = {}

    async def of(self, constraint: Constraint, text: CheckpointText, client: str = "") -> str:
        """The grammar of an answer that is held to the constraint, in llguidance's notation. Raises ApiError 400, which
        names the parameter."""
        if not text.eos_token_ids:
            raise bad_request(
                f"{constraint.param!r} needs a model with an end-of-sequence token, which this one has not; "
                "use stop strings.",
                param=constraint.param,
            )
        return await self.check(constraint, client)

    async def check(self, constraint: Constraint, client: str = "") -> str:
        """The grammar of the constraint, in llguidance's notation. Raises ApiError 400 where it cannot be met, or takes
        too much, and 503 where too many others are tried."""
        tried = await self._try(Trial(constraint.kind, constraint.source), client)
        if tried.refusal:
            raise bad_request(f"{constraint.param!r} is refused: {tried.refusal}.", param=constraint.param)
        return tried.grammar

    async def _try(self, trial: Trial, client: str) -> Tried:
        work = msgspec.msgpack.encode(trial)
        key = hashlib.blake2b(work, digest_size=16).digest()
        if key not in self._tried:  # one that is known waits for no other's trial
            async with self._place(client):
                if key not in self._tried:
                    answer = await self._process.ask(work)
                    if answer is None:
                        return self._overrun()  # not remembered: the process may have died of something else
                    self._tried[key] = msgspec.msgpack.decode(answer, type=Tried)
        tried = self._tried[key] = self._tried.pop(key)
        while len(self._tried) > KEPT:
            del self._tried[next(iter(self._tried))]
        return tried

    @asynccontextmanager
    async def _place(self, client: str) -> AsyncIterator[None]:
        """Have the process. Raises ApiError 503 where that takes too long."""
        own = self._turns.setdefault(client, asyncio.Lock())
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await stack.enter_async_context(own)
                    await stack.enter_async_context(self._turn)
            except TimeoutError:
                raise overloaded("Too many grammars are tried just now; send the request again.") from None
            yield

    def _overrun(self) -> Tried:
        log.warning("grammar_overran")
        return Tried(refusal=self._overran)
