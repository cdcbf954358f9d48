"""Vectors and scores of texts: each text is one request to the router, which makes one vector in place of a token."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

from starlette.requests import Request

from livescale.services.gateway.access import Visit
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.checks import check_token_ids
from livescale.services.gateway.errors import bad_request, too_long, wrong_use
from livescale.services.gateway.generation import Backend, Generation, just_wait
from livescale.services.gateway.image_decoder import ImageDecoder
from livescale.services.gateway.models import RegisteredModels, context_tokens
from livescale.services.gateway.output import TextPiece
from livescale.services.gateway.pooling_shapes import PoolingOptions
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.spans import caller_of
from livescale.services.gateway.submission import salt_of
from livescale.services.gateway.vectors import PooledOutput
from livescale.shared.bus.contract import Context
from livescale.shared.messages.images import Images
from livescale.shared.messages.requests import Sampling, Submit, TokenLogprobs
from livescale.shared.runtime.clock import Ids
from livescale.shared.runtime.waiting import together

MOST_INPUTS = 2_048  # OpenAI's limit
AT_ONCE = 64  # texts of a request that workers have or wait for


@dataclass(frozen=True)
class Asked:
    """A checked body of this model, and what its texts are called and count."""

    request: Request
    body: PoolingOptions
    name: str
    text: CheckpointText
    context: int
    id: str
    wall: float


@dataclass(frozen=True)
class Pooling:
    """Makes what endpoints of vectors and scores answer with. Its methods raise ApiError."""

    settings: GatewaySettings
    gateway: str
    ids: Ids
    backend: Backend
    models: RegisteredModels
    decoder: ImageDecoder

    async def ask(self, request: Request, body: PoolingOptions) -> Asked:
        """Find the model that a body asks, and give the request an id. Raises ApiError."""
        entry = await self.models.find_or_only(body.model)
        if entry.spec.base is not None:
            raise wrong_use(body.model, "is an adapter, and generates text", "POST /v1/completions")
        text = await self.models.text(entry)
        id, wall = self.ids.new("req"), self.backend.clock.wall()
        return Asked(request, body, entry.spec.name, text, context_tokens(entry), id, wall)

    async def encode(self, asked: Asked, one: str | list[int], param: str) -> list[int]:
        """The tokens of one text, cut where the body asks for it."""
        body = asked.body
        tokens = one
        if isinstance(tokens, str):
            tokens = await self.models.encode(asked.text, tokens, add_special_tokens=body.add_special_tokens)
        return self.fitting(asked, tokens, param)

    def fitting(self, asked: Asked, tokens: list[int], param: str) -> list[int]:
        """The tokens, cut where the body asks for it. Raises ApiError 400 where the model cannot take them."""
        body, most = asked.body, asked.body.truncate_prompt_tokens
        if most is not None:
            most = min(asked.context, asked.context if most < 0 else most)
            tokens = tokens[:most] if body.truncation_side == "right" else tokens[max(0, len(tokens) - most) :]
        check_token_ids(tokens, asked.text.vocab_size, param)
        if not tokens:
            raise bad_request(f"{param!r} has a text without tokens; give at least one.", param)
        if len(tokens) > asked.context:
            raise too_long(
                f"This model's maximum context length is {asked.context} tokens, and a text of {param!r} has "
                f"{len(tokens)}; shorten it, or give 'truncate_prompt_tokens'.",
                param,
            )
        return tokens

    async def pixels(self, asked: Asked, images: Images, urls: Sequence[str], param: str) -> list[bytes]:
        """The pixels of images in data URLs, as the model takes them. Raises ApiError 400 and 413."""
        if images.rows > asked.context:
            raise too_long(
                f"An image has {images.rows} tokens, and requests to this model have at most {asked.context}; raise "
                "its max_model_len.",
                param,
            )
        return [await self.decoder.decode(url, images, param) for url in urls]

    async def make(
        self,
        asked: Asked,
        texts: Sequence[list[int]],
        samplings: Sequence[Sampling],
        pixels: Sequence[bytes] = (),
    ) -> list[TokenLogprobs]:
        """What workers tell of each text's only token, for which they are asked by its own sampling. When one fails,
        the others are cancelled. A text that is an image has `pixels`."""
        visit: Visit = asked.request.state.visit
        visit.reserve(sum(map(len, texts)))
        timeout = min(asked.body.timeout or self.settings.default_timeout_s, self.settings.max_timeout_s)
        caller = caller_of(asked.request.headers)
        context = Context(
            deadline=asked.wall + timeout, request_id=str(asked.request.state.request_id), traceparent=caller
        )
        submits = [
            Submit(
                request_id=asked.id if len(texts) == 1 else f"{asked.id}-p{index}",
                model=asked.name,
                gateway=self.gateway,
                prompt=tokens,
                sampling=sampling,
                max_tokens=1,
                priority=asked.body.priority,
                deadline=asked.wall + timeout,
                cache_salt=salt_of(visit.who, asked.body.cache_salt),
                traceparent=caller,
                pixels=pixels[index] if pixels else b"",
            )
            for index, (tokens, sampling) in enumerate(zip(texts, samplings, strict=True))
        ]
        told = await self._all(submits, context)
        visit.spend(sum(map(len, texts)))
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
