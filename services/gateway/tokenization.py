"""The endpoints that turn texts into tokens and back, and that tell of a model's tokenizer."""

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.bodies import DetokenizeRequest, TokenizeRequest
from livescale.services.gateway.chat_template import RenderingWay
from livescale.services.gateway.checkpoint_text import check_reads
from livescale.services.gateway.checks import check_token_ids
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.models import RegisteredModels, context_tokens
from livescale.services.gateway.openapi import BODY_ERRORS, MODEL_ERRORS, Operation
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import json_answer
from livescale.services.gateway.templates import Templates, render_chat


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /tokenize: the token ids, and how many there are."""

    count: int
    max_model_len: int
    tokens: list[int]


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /detokenize: the text, with special tokens written out."""

    prompt: str


@dataclass(frozen=True)
class Tokenization:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    models: RegisteredModels
    templates: Templates
    max_body_bytes: int

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


def token_operations(tokenization: Tokenization) -> list[Operation]:
    """The operations of tokenization, for the application and OpenAPI."""
    errors = (*BODY_ERRORS, *MODEL_ERRORS)
    return [
        Operation(
            "POST",
            "/tokenize",
            tokenization.tokenize,
            "The token ids of a prompt or of messages",
            {200: Tokenized},
            body=TokenizeRequest,
            errors=errors,
            protected=True,
        ),
        Operation(
            "POST",
            "/detokenize",
            tokenization.detokenize,
            "The text of token ids",
            {200: Detokenized},
            body=DetokenizeRequest,
            errors=errors,
            protected=True,
        ),
        Operation(
            "GET",
            "/tokenizer_info",
            tokenization.tokenizer_info,
            "What the checkpoint says of its tokenizer, with its chat template",
            {200: dict[str, Any]},
            query=(("model", "A registered model; may be left out where there is only one"),),
            errors=(400, *MODEL_ERRORS),
            protected=True,
        ),
    ]
