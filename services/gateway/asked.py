"""What a checked body asks for, where several of its parameters say it together. Pure."""

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions

COMPLETION_MAX_TOKENS = 16  # OpenAI's default


def asked_tokens(body: GenerationOptions) -> int | None:
    """The client's limit of generated tokens; None is as many as fit."""
    if isinstance(body, ChatRequest):
        return body.max_completion_tokens or body.max_tokens
    return COMPLETION_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens)


def only_prompt(body: GenerationOptions) -> bool:
    """Whether the client wants nothing but its prompt back. A token is generated all the same, and dropped."""
    return body.max_tokens == 0


def choices(body: GenerationOptions) -> int:
    """How many choices are generated for each prompt."""
    best_of = body.best_of if isinstance(body, CompletionRequest) else None
    return best_of or body.n


def asked_logprobs(body: GenerationOptions) -> int | None:
    """How many of the likeliest tokens the client wants to be told of; None where it asks for no log-probabilities."""
    if isinstance(body, ChatRequest):
        return body.top_logprobs or 0 if body.logprobs else None
    return None if not isinstance(body, CompletionRequest) or body.logprobs is False else body.logprobs


def asked_prompt_logprobs(body: GenerationOptions) -> int | None:
    """How many of the likeliest tokens the client wants to be told of in each place of its prompt; None for nothing."""
    echoed = asked_logprobs(body) if isinstance(body, CompletionRequest) and body.echo else None
    return echoed if body.prompt_logprobs is None else max(body.prompt_logprobs, echoed or 0)


def needed_logprobs(body: GenerationOptions) -> int | None:
    """What the worker has to tell: the likeliest of several choices are chosen by their log-probabilities."""
    asked = asked_logprobs(body)
    return 0 if asked is None and choices(body) > body.n else asked
