"""Endpoints that say what would be submitted for a body, and generate nothing: vLLM's /render."""

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions, StreamOptions
from livescale.services.gateway.completions import Completions
from livescale.services.gateway.openapi import BODY_ERRORS, MODEL_ERRORS, Operation
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import json_answer
from livescale.services.gateway.submission import Origin, Prompts, make_submit, truncated

# What is said of the sampling, where it is not left to the worker.
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logprobs"),
)


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it would be submitted. `token_offsets` are the beginning and the end of each token in the text;
    there are none where a prompt was given as tokens, or was cut."""

    request_id: str
    model: str
    prompt: str | None
    prompt_token_ids: list[int]
    token_ids: list[int]
    token_offsets: list[list[int]] | UnsetType | None = UNSET
    features: None = None
    sampling_params: dict[str, Any]
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = 0
    cache_salt: str | None = None


@dataclass(frozen=True)
class RenderApi:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    completions: Completions

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions/render."""
        body = parse_body(await read_body(request, self.completions.max_body_bytes), ChatRequest)
        asked = await self.completions.prompts.of_chat(body)
        assert isinstance(asked.said, str)
        return json_answer(self._rendered(request, asked, 0, asked.said))

    async def completion(self, request: Request) -> Response:
        """Answer POST /v1/completions/render: the token ids of each prompt."""
        body = parse_body(await read_body(request, self.completions.max_body_bytes), CompletionRequest)
        asked = await self.completions.prompts.of_texts(body)
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        said = [text if isinstance(text, str) else None for text in texts[: len(asked.prompts)]]
        return json_answer([self._rendered(request, asked, place, text) for place, text in enumerate(said)])

    def _rendered(self, request: Request, asked: Prompts, place: int, said: str | None) -> Rendered:
        body, name = asked.body, str(request.state.request_id)
        prompt = truncated(body, asked.prompts[place], asked.context_limit)
        submit = make_submit(body, prompt, asked.text, asked.context_limit, Origin(name, "", 0.0))
        sampling = {param: getattr(submit.sampling, param) for param in SAMPLING}
        return Rendered(
            request_id=name,
            model=body.model,
            prompt=said,
            prompt_token_ids=prompt,
            token_ids=prompt,
            token_offsets=_offsets(asked, prompt, said) if body.return_token_offsets else UNSET,
            sampling_params={
                **sampling,
                "max_tokens": submit.max_tokens,
                "min_tokens": submit.min_tokens,
                "stop_token_ids": submit.stop_token_ids,
            },
            stream=body.stream,
            stream_options=body.stream_options,
            priority=body.priority,
            cache_salt=body.cache_salt,
        )


def _offsets(asked: Prompts, prompt: list[int], said: str | None) -> list[list[int]] | None:
    if said is None:
        return None
    ids, offsets = asked.text.encode_with_offsets(said, add_special_tokens=_special(asked.body))
    return offsets if ids == prompt else None


def _special(body: GenerationOptions) -> bool:
    assert isinstance(body, ChatRequest | CompletionRequest)
    return body.add_special_tokens


def render_operations(api: RenderApi) -> list[Operation]:
    """Return the operations that tell what would be submitted, for the application and OpenAPI."""
    errors = (*BODY_ERRORS, *MODEL_ERRORS)
    return [
        Operation(
            "POST",
            "/v1/chat/completions/render",
            api.chat,
            "The tokens that a conversation becomes, and its sampling; nothing is generated",
            {200: Rendered},
            body=ChatRequest,
            errors=errors,
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/completions/render",
            api.completion,
            "The tokens that each prompt becomes, and their sampling; nothing is generated",
            {200: list[Rendered]},
            body=CompletionRequest,
            errors=errors,
            protected=True,
        ),
    ]
