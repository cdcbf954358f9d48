"""A checked body with the tokens of what it says, and what follows from both for its answer. Pure."""

from dataclasses import replace

from msgspec import Struct
from msgspec.structs import replace as with_fields

from livescale.services.gateway.asked import asked_logprobs, choices, only_prompt
from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.echo import Echo
from livescale.services.gateway.envelope import Envelope
from livescale.services.gateway.logprobs import PromptNames, TokenNames
from livescale.services.gateway.models import Served
from livescale.services.gateway.reading import Reading
from livescale.services.gateway.submission import Origin, TokenRules, decoding, make_submit
from livescale.shared.messages.requests import Submit


class Prompts(Struct, frozen=True):
    """A checked body, what computes it, and the tokens of what it says; of messages also the text, and how the answer
    is read."""

    body: GenerationOptions
    served: Served
    text: CheckpointText
    context_limit: int
    prompts: list[list[int]]
    said: str | None = None
    reading: Reading | None = None


def submits_of(asked: Prompts, origin: Origin, rules: TokenRules) -> list[Submit]:
    """One submission for each choice of each prompt; choices after a prompt's first follow that one. Where there are
    several, their ids begin with the one of `origin`."""
    each = choices(asked.body)
    count = each * len(asked.prompts)
    names = [origin.request_id] if count == 1 else [f"{origin.request_id}-p{index}" for index in range(count)]
    model, adapter = asked.served.entry.spec.name, asked.served.adapter
    submits = []
    for index, name in enumerate(names):
        own = replace(origin, request_id=name, choice=index % each)
        submit = make_submit(asked.body, asked.prompts[index // each], asked.text, asked.context_limit, own, rules)
        follows = names[index - index % each] if index % each else None
        submits.append(with_fields(submit, model=model, adapter=adapter, follows=follows))
    return submits


def envelope_of(asked: Prompts, id: str, created: int) -> Envelope:
    """Return what all objects of a request's answer share: id, time, model."""
    body, options = asked.body, asked.body.stream_options
    names = TokenNames(asked.text.token_text, body.return_tokens_as_token_ids)
    of_prompt = body.prompt_logprobs
    return Envelope(
        id=id,
        created=created,
        model=body.model,
        token_ids=body.return_token_ids,
        usage_follows=options is not None and options.include_usage,
        continuous=options is not None and options.include_usage and options.continuous_usage_stats,
        prompt_names=None if of_prompt is None else PromptNames(TokenNames(asked.text.token_text), of_prompt),
        names=None if asked_logprobs(body) is None else names,
        prompt_text=asked.said if isinstance(body, ChatRequest) and body.return_prompt_text else None,
    )


def echoes_of(body: GenerationOptions, prompts: list[list[int]], text: CheckpointText) -> list[Echo]:
    """What is to come before the answer to each prompt, where the body asks for it."""
    if isinstance(body, CompletionRequest) and body.echo:
        top, alone, decode = asked_logprobs(body), only_prompt(body), decoding(body, text)
        return [Echo.of(decode, prompt, top, alone) for prompt in prompts]
    if isinstance(body, ChatRequest) and body.echo and body.messages[-1].role == "assistant":
        return [Echo(body.messages[-1].text, [], None, False)]
    return []
