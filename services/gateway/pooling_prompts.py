"""From a body that asks for vectors or scores to the tokens and pixels of what it says."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from livescale.services.gateway.access import Visit
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.checks import check_token_ids
from livescale.services.gateway.errors import bad_request, too_long, wrong_use
from livescale.services.gateway.image_decoder import ImageDecoder
from livescale.services.gateway.models import RegisteredModels, context_tokens
from livescale.services.gateway.pooling_shapes import PoolingOptions, Texts
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.submission import split_prompts
from livescale.shared.runtime.clock import Clock, Ids


@dataclass(frozen=True)
class Asked:
    """A checked body of this model, and what its texts are called and count. `wall` and `deadline` are in seconds since
    the epoch."""

    request: Request
    visit: Visit
    body: PoolingOptions
    name: str
    text: CheckpointText
    context: int
    id: str
    wall: float
    deadline: float


@dataclass(frozen=True)
class PoolingPrompts:
    """Makes what is asked of workers. Its methods raise ApiError."""

    settings: GatewaySettings
    ids: Ids
    clock: Clock
    models: RegisteredModels
    decoder: ImageDecoder

    async def ask(self, request: Request, body: PoolingOptions) -> Asked:
        """Find the model that a body asks, and give the request an id. Raises ApiError."""
        entry = await self.models.find_or_only(body.model)
        if entry.spec.base is not None:
            raise wrong_use(body.model, "is an adapter, and generates text", "POST /v1/completions")
        text = await self.models.text(entry)
        id, wall = self.ids.new("req"), self.clock.wall()
        deadline = wall + min(body.timeout or self.settings.default_timeout_s, self.settings.max_timeout_s)
        context = context_tokens(entry)
        return Asked(request, request.state.visit, body, entry.spec.name, text, context, id, wall, deadline)

    async def encode_all(self, asked: Asked, given: Texts, most: int, param: str) -> list[list[int]]:
        """The tokens of each text, cut where the body asks for it. There may be `most` texts."""
        return [await self.encode(asked, one, param) for one in split_prompts(given, most, param)]

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

    async def images(self, asked: Asked, urls: Sequence[str], param: str) -> tuple[list[list[int]], list[bytes]]:
        """The rows and the pixels of images in data URLs, as the model takes them. Raises ApiError 400 and 413."""
        images = asked.text.use.images
        assert images is not None, f"{asked.name} takes texts"
        if images.rows > asked.context:
            raise too_long(
                f"An image has {images.rows} tokens, and requests to this model have at most {asked.context}; raise "
                "its max_model_len.",
                param,
            )
        return [[0] * images.rows] * len(urls), [await self.decoder.decode(url, images, param) for url in urls]
