"""The endpoints that list models, and that turn texts into tokens and back."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.answers import Detokenized, Listing, ModelCard, Tokenized, status
from livescale.services.gateway.bodies import DetokenizeRequest, TokenizeRequest
from livescale.services.gateway.chat_template import RenderingWay
from livescale.services.gateway.checkpoint_text import check_reads
from livescale.services.gateway.checks import check_token_ids
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.models import RegisteredModels, context_tokens
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import json_answer
from livescale.services.gateway.templates import Templates, render_chat
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.registry import AskSnapshot, ModelEntry, Snapshot
from livescale.shared.subjects import SNAPSHOT

ASK_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True)
class Catalog:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    bus: Bus
    models: RegisteredModels
    templates: Templates
    max_body_bytes: int

    async def cards(self, request: Request) -> Response:
        if not self.models.entries:
            await self.models.refresh_for_client()
        snapshot = await self.snapshot()
        entries = [entry for entry in self.models.entries if entry.state != "removing"]
        return json_answer(Listing(data=[_card(entry, snapshot) for entry in entries]))

    async def card(self, request: Request) -> Response:
        entry = await self.models.find(request.path_params["model"], failed=True)
        return json_answer(_card(entry, await self.snapshot()))

    async def tokenize(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.max_body_bytes), TokenizeRequest)
        entry = (await self.models.find_served(body.model)).entry
        text = await self.models.text(entry)
        check_reads(body.model, text.use)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("Give either 'prompt' or 'messages'.", param="prompt")
        if body.messages is not None:
            prompt = await render_chat(self.templates, text, body.messages, RenderingWay(body.add_generation_prompt))
            tokens = await self.models.encode(text, prompt, add_special_tokens=False)
        else:
            tokens = await self.models.encode(text, body.prompt or "", add_special_tokens=body.add_special_tokens)
        return json_answer(Tokenized(count=len(tokens), max_model_len=context_tokens(entry), tokens=tokens))

    async def detokenize(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.max_body_bytes), DetokenizeRequest)
        text = await self.models.text((await self.models.find_served(body.model)).entry)
        check_reads(body.model, text.use)
        check_token_ids(body.tokens, text.vocab_size, "tokens")
        return json_answer(Detokenized(prompt=text.decode_all(body.tokens)))

    async def tokenizer_info(self, request: Request) -> Response:
        """Answer GET /tokenizer_info: tokenizer_config.json, and the template wherever that came from."""
        text = await self.models.text((await self.models.find_served(request.query_params.get("model", ""))).entry)
        template = {} if text.template is None else {"chat_template": text.template.source}
        return json_answer({"tokenizer_class": type(text.tokenizer).__name__, **text.about, **template})

    async def snapshot(self) -> Snapshot | None:
        """The registry's snapshot of the system; None where the registry does not answer."""
        try:
            return await self.bus.call(SNAPSHOT, AskSnapshot(), timeout=ASK_TIMEOUT_SECONDS)
        except BusError:
            return None


def _card(entry: ModelEntry, snapshot: Snapshot | None) -> ModelCard:
    return ModelCard(
        id=entry.spec.name,
        created=entry.created,
        root=entry.spec.path,
        parent=entry.spec.base,
        max_model_len=entry.max_model_len,
        livescale=status(entry, snapshot),
    )
