"""Vectors and scores of texts: each text is one request to the router, which makes one vector in place of a token."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

from livescale.services.gateway.generation import Generation, just_wait
from livescale.services.gateway.output import TextPiece
from livescale.services.gateway.pooling_prompts import Asked
from livescale.services.gateway.spans import caller_of
from livescale.services.gateway.streams import Backend
from livescale.services.gateway.submission import salt_of
from livescale.services.gateway.vectors import PooledOutput
from livescale.shared.bus.contract import Context
from livescale.shared.messages.requests import Sampling, Submit, TokenLogprobs
from livescale.shared.runtime.waiting import together

AT_ONCE = 64  # texts of a request that workers have or wait for


@dataclass(frozen=True)
class Pooling:
    """Asks workers for vectors and scores. `gateway` is the id that they answer to."""

    gateway: str
    backend: Backend

    async def make(
        self,
        asked: Asked,
        texts: Sequence[list[int]],
        samplings: Sequence[Sampling],
        pixels: Sequence[bytes] = (),
    ) -> list[TokenLogprobs]:
        """What workers tell of each text's only token, for which they are asked by its own sampling. When one fails,
        the others are cancelled. A text that is an image has `pixels`."""
        asked.visit.reserve(sum(map(len, texts)))
        caller = caller_of(asked.request.headers)
        context = Context(deadline=asked.deadline, request_id=str(asked.request.state.request_id), traceparent=caller)
        submits = [
            Submit(
                request_id=asked.id if len(texts) == 1 else f"{asked.id}-p{index}",
                model=asked.name,
                gateway=self.gateway,
                prompt=tokens,
                sampling=sampling,
                max_tokens=1,
                priority=asked.body.priority,
                deadline=asked.deadline,
                cache_salt=salt_of(asked.visit.who, asked.body.cache_salt),
                traceparent=caller,
                pixels=pixels[index] if pixels else b"",
            )
            for index, (tokens, sampling) in enumerate(zip(texts, samplings, strict=True))
        ]
        told = await self._all(submits, context)
        asked.visit.spend(sum(map(len, texts)))
        return told

    async def _all(self, submits: Sequence[Submit], context: Context) -> list[TokenLogprobs]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(index: int, submit: Submit) -> TokenLogprobs:
            output = PooledOutput()
            async with places:
                await Generation(self.backend, submit, output, context, follows=index > 0).run(_ignore, just_wait)
            assert output.told is not None, f"{submit.request_id} ended without a vector"
            return output.told

        return await together(*starmap(one, enumerate(submits)))


async def _ignore(piece: TextPiece) -> None:
    """There is no text to hand on."""
