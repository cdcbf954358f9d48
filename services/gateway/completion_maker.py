"""From the prompts of a body to its response: submissions to the router, outputs, and the trace of the request."""

from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request

from livescale.services.gateway.access import Visit
from livescale.services.gateway.beam_response import BeamResponse, searches_of
from livescale.services.gateway.bodies import GenerationOptions, asked_logprobs, choices
from livescale.services.gateway.completion_response import CompletionResponse
from livescale.services.gateway.generation import Backend, Generation
from livescale.services.gateway.prompt_maker import PromptMaker
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.shapes import ResponseShape
from livescale.services.gateway.spans import Tracing
from livescale.services.gateway.submission import (
    Origin,
    Prompts,
    TokenRules,
    echoes_of,
    envelope_of,
    fitted,
    make_output,
    submits_of,
)
from livescale.shared.bus.contract import Context
from livescale.shared.runtime.clock import Ids


@dataclass(frozen=True)
class CompletionMaker:
    """Prepares responses that generate. `gateway` is the id that workers send tokens to."""

    settings: GatewaySettings
    gateway: str
    ids: Ids
    backend: Backend
    prompts: PromptMaker
    tracing: Tracing

    async def prepare(self, request: Request, asked: Prompts, shape: ResponseShape) -> CompletionResponse:
        """The response to these prompts, in this shape. Nothing runs yet. Raises ApiError."""
        asked = fitted(asked, self.settings.max_prompts)
        rules = await self.prompts.rules(asked, request.state.visit.who)
        return self._response(request, asked, rules, shape)

    def _response(
        self, request: Request, asked: Prompts, rules: TokenRules, shape: ResponseShape
    ) -> CompletionResponse:
        request_id, wall, body, each = self.ids.new("req"), self.backend.clock.wall(), asked.body, choices(asked.body)
        deadline = wall + min(body.timeout or self.settings.default_timeout_s, self.settings.max_timeout_s)
        visit: Visit = request.state.visit
        submits = submits_of(asked, Origin(request_id, self.gateway, deadline, client=visit.who), rules)
        public = take_id(request, body) or request_id.removeprefix("req-")
        envelope = envelope_of(asked, f"{shape.prefix}-{public}", int(wall))
        visit.reserve(sum(map(len, asked.prompts)) + sum(submit.max_tokens for submit in submits))
        trace = self.tracing.begin(request.headers, body, envelope.id)
        if trace.traceparent is not None:
            submits = [replace(submit, traceparent=trace.traceparent) for submit in submits]
        context = Context(deadline=deadline, request_id=public_id(request), traceparent=trace.traceparent)
        outputs = [make_output(body, asked.text, submit, asked.reading, index) for index, submit in enumerate(submits)]
        generations = [
            Generation(
                self.backend, submit, output, context, follows=index % each > 0, grammar_param=rules.grammar_param
            )
            for index, (submit, output) in enumerate(zip(submits, outputs, strict=True))
        ]
        make: type[CompletionResponse] | partial[BeamResponse] = CompletionResponse
        if body.use_beam_search:
            searches = searches_of(body, submits, self.backend, context)
            make = partial(BeamResponse, searches=searches, top=asked_logprobs(body))
        return make(
            shape=shape,
            envelope=envelope,
            prompts=asked.prompts,
            n=body.n,
            generations=generations,
            echoes=echoes_of(body, asked.prompts, asked.text),
            trace=trace,
            spend=visit.spend,
            interval=body.stream_interval,
            deadline=deadline,
        )


def take_id(request: Request, body: GenerationOptions) -> str | None:
    """The id that the body gives the request, by which it is then known; None where there is none, or the header has
    one."""
    if body.request_id is None or "x-request-id" in request.headers:
        return None
    request.state.request_id = body.request_id
    return body.request_id


def public_id(request: Request) -> str:
    """The id that clients know the request by: the one they gave it, otherwise the gateway's."""
    return str(request.state.request_id)
