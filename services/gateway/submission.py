"""From a checked body and its prompt's tokens to the message for the router, and to the text of its answer. Pure.

The last checks are made here, those that need the model's vocabulary and context.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.checkpoint_text import CheckpointText, GenerationDefaults
from livescale.services.gateway.errors import bad_request, too_long
from livescale.services.gateway.output import TextOutput
from livescale.shared.messages.requests import Sampling, Submit

COMPLETION_MAX_TOKENS = 16  # OpenAI's default


@dataclass(frozen=True)
class Origin:
    """Where a submission comes from: its id, its gateway, and its deadline in seconds since the epoch."""

    request_id: str
    gateway: str
    deadline: float


def check_options(body: GenerationOptions) -> None:
    """Check what the bounds of single fields cannot say. Raises ApiError 400."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("'stream_options' is for requests with 'stream': true.", param="stream_options")
    limit = asked_tokens(body)
    if limit is not None and body.min_tokens > limit:
        raise bad_request(f"'min_tokens' is more than the {limit} tokens asked for.", param="min_tokens")


def asked_tokens(body: GenerationOptions) -> int | None:
    """The client's limit of generated tokens; None is as many as fit."""
    if isinstance(body, ChatRequest):
        return body.max_completion_tokens or body.max_tokens
    return body.max_tokens or COMPLETION_MAX_TOKENS


def split_prompts(body: CompletionRequest, max_prompts: int) -> list[str | list[int]]:
    """One prompt per choice: texts, or token ids. Raises ApiError 400 for a mixture, for none, and for too many."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))  # one pass in C, as there may be thousands of token ids
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if not prompt or int in kinds:
        raise bad_request("'prompt' must be one text, one list of token ids, or a list of those.", param="prompt")
    if len(prompt) > max_prompts:
        raise bad_request(
            f"'prompt' has {len(prompt)} prompts; a request may have at most {max_prompts}.", param="prompt"
        )
    return cast("list[str | list[int]]", prompt)


def stop_strings(body: GenerationOptions) -> list[str]:
    """The stop strings that a body asks for, as a list."""
    if body.stop is None:
        return []
    return [body.stop] if isinstance(body.stop, str) else body.stop


def make_submit(
    body: GenerationOptions, prompt: list[int], text: CheckpointText, context_tokens: int, origin: Origin
) -> Submit:
    """The message for the router. Raises ApiError 400 where the prompt is empty, has ids outside the vocabulary, or is
    too long for the context."""
    param = "messages" if isinstance(body, ChatRequest) else "prompt"
    check_token_ids(prompt, text.vocab_size, param)
    if not prompt:
        raise bad_request(f"{param!r} has no tokens; give at least one.", param=param)
    room = context_tokens - len(prompt)
    asked = asked_tokens(body)
    if room < (asked or 1):
        raise too_long(
            f"This model's maximum context length is {context_tokens} tokens. You requested "
            f"{len(prompt) + (asked or 1)} tokens: {len(prompt)} in {param!r} and {asked or 1} to generate.",
            param=param,
        )
    return Submit(
        request_id=origin.request_id,
        model=body.model,
        gateway=origin.gateway,
        prompt=prompt,
        sampling=_sampling(body, text.defaults, origin.request_id),
        max_tokens=asked or room,
        open_ended=asked is None,
        min_tokens=body.min_tokens,
        stop_token_ids=[] if body.ignore_eos else list(text.eos_token_ids),
        priority=body.priority,
        deadline=origin.deadline,
        context_id=body.prompt_cache_key,
    )


def make_output(body: GenerationOptions, text: CheckpointText, submit: Submit) -> TextOutput:
    """The text that a submission's tokens become, which ends at the stop strings that the body asks for."""
    return TextOutput(
        text.decode,
        submit.prompt,
        stops=stop_strings(body),
        stop_token_ids=submit.stop_token_ids,
        min_tokens=submit.min_tokens,
    )


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Check that the model's vocabulary has all ids. Raises ApiError 400 naming the parameter."""
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        raise bad_request(f"{param!r} has token id {largest}; the vocabulary has ids below {vocab_size}.", param=param)


def _sampling(body: GenerationOptions, defaults: GenerationDefaults, request_id: str) -> Sampling:
    return Sampling(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=max(0, defaults.top_k if body.top_k is None else body.top_k),
        seed=_seed_of(request_id) if body.seed is None else body.seed,
    )


def _seed_of(request_id: str) -> int:
    """A seed that is as unpredictable as the request's id, and the same wherever the request is continued."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest()) >> 1
