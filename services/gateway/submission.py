"""From a checked body and its prompt's tokens to the message for the router, and to the text of its answer. Pure.

The last checks are made here, those that need the model's vocabulary and context.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.checkpoint_text import CheckpointText, GenerationDefaults
from livescale.services.gateway.errors import bad_request, too_long
from livescale.services.gateway.output import Decode, Ends, Output, TextOutput
from livescale.services.gateway.reading import Reading
from livescale.services.gateway.rendering import check_rendering
from livescale.services.gateway.sampling_options import stop_strings
from livescale.services.gateway.tools import check_tools
from livescale.shared.messages.requests import PromptLogprobs, Sampling, Submit

COMPLETION_MAX_TOKENS = 16  # OpenAI's default
MOST_CHARACTERS = 4_096  # of all stop strings, and of all bad words; every token is compared with them
MOST_PROMPT_LOGPROBS = 30_000  # in one message of the bus, which takes a megabyte


@dataclass(frozen=True)
class Origin:
    """Where a submission comes from: its id, its gateway, and its deadline in seconds since the epoch. It makes this
    `choice` of its prompt."""

    request_id: str
    gateway: str
    deadline: float
    choice: int = 0


def check_options(body: GenerationOptions) -> None:
    """Check what the bounds of single fields cannot say. Raises ApiError 400."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("'stream_options' is for requests with 'stream': true.", param="stream_options")
    limit = asked_tokens(body)
    if limit is not None and body.min_tokens > limit:
        raise bad_request(f"'min_tokens' is more than the {limit} tokens asked for.", param="min_tokens")
    _check_logprobs(body)
    _check_texts(body)
    if isinstance(body, ChatRequest):
        check_rendering(body)
        check_tools(body.tools, body.tool_choice)
    best_of = choices(body)
    if best_of < body.n:
        raise bad_request(f"'best_of' is less than 'n'; give at least {body.n}.", param="best_of")
    if best_of > body.n and body.stream:
        raise bad_request("'best_of' more than 'n' cannot be streamed; leave one of them out.", param="best_of")


def _check_texts(body: GenerationOptions) -> None:
    for param, texts in (("stop", stop_strings(body)), ("bad_words", body.bad_words)):
        length = sum(map(len, texts))
        if length > MOST_CHARACTERS:
            raise bad_request(f"{param!r} has {length} characters; {MOST_CHARACTERS} are the most.", param=param)
    if not all(map(str.strip, body.bad_words)):
        raise bad_request("'bad_words' has one of blanks only; leave it out.", param="bad_words")


def truncated(body: GenerationOptions, prompt: list[int], context_tokens: int) -> list[int]:
    """The prompt, cut to as many tokens as the body asks for, or as the context has room for."""
    if body.truncate_prompt_tokens is None:
        return prompt
    most = body.truncate_prompt_tokens
    if most < 0:
        most = max(0, context_tokens - (asked_tokens(body) or 1))
    if len(prompt) <= most:
        return prompt
    return prompt[:most] if body.truncation_side == "right" else prompt[len(prompt) - most :]


def _check_logprobs(body: GenerationOptions) -> None:
    if isinstance(body, ChatRequest) and body.top_logprobs and not body.logprobs:
        raise bad_request("'top_logprobs' is for requests with 'logprobs': true.", param="top_logprobs")
    if isinstance(body, CompletionRequest) and only_prompt(body) and not body.echo:
        raise bad_request("'max_tokens' may be 0 with 'echo': true only; give at least 1.", param="max_tokens")
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("'prompt_logprobs' cannot be streamed; leave one of them out.", param="prompt_logprobs")
    if isinstance(body, CompletionRequest) and body.logprobs is True:
        raise bad_request("'logprobs' is a number here: of the likeliest tokens to tell.", param="logprobs")


def asked_logprobs(body: GenerationOptions) -> int | None:
    """How many of the likeliest tokens the client wants to be told of; None where it asks for no log-probabilities."""
    if isinstance(body, ChatRequest):
        return body.top_logprobs or 0 if body.logprobs else None
    return None if not isinstance(body, CompletionRequest) or body.logprobs is False else body.logprobs


def check_choices(body: GenerationOptions, prompts: int, most: int) -> None:
    """Check that the prompts have no more than `most` choices together. Raises ApiError 400."""
    count = prompts * choices(body)
    if count > most and choices(body) > 1:
        param = "n" if choices(body) == body.n else "best_of"
        raise bad_request(f"{param!r} asks for {count} choices; a request may have at most {most}.", param=param)


def choices(body: GenerationOptions) -> int:
    """How many choices are generated for each prompt."""
    best_of = body.best_of if isinstance(body, CompletionRequest) else None
    return best_of or body.n


def asked_tokens(body: GenerationOptions) -> int | None:
    """The client's limit of generated tokens; None is as many as fit."""
    if isinstance(body, ChatRequest):
        return body.max_completion_tokens or body.max_tokens
    return COMPLETION_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens)


def only_prompt(body: GenerationOptions) -> bool:
    """Whether the client wants nothing but its prompt back. A token is generated all the same, and dropped."""
    return body.max_tokens == 0


def asked_prompt_logprobs(body: GenerationOptions) -> int | None:
    """How many of the likeliest tokens the client wants to be told of in each place of its prompt; None for nothing."""
    echoed = asked_logprobs(body) if isinstance(body, CompletionRequest) and body.echo else None
    return echoed if body.prompt_logprobs is None else max(body.prompt_logprobs, echoed or 0)


def split_prompts(body: CompletionRequest, max_prompts: int) -> list[str | list[int]]:
    """The prompts: texts, or token ids. Raises ApiError 400 for a mixture, for none, and for too many."""
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


def make_submit(
    body: GenerationOptions,
    prompt: list[int],
    text: CheckpointText,
    context_tokens: int,
    origin: Origin,
    bad_words: list[list[int]] | None = None,
) -> Submit:
    """The message for the router. `bad_words` are those of the body as tokens. Raises ApiError 400 where the prompt is
    empty or too long for the context, or something has ids outside the vocabulary."""
    param = "messages" if isinstance(body, ChatRequest) else "prompt"
    check_token_ids(prompt, text.vocab_size, param)
    stops = stop_tokens(body, text)
    _check_named(body, stops, text.vocab_size)
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
    if body.min_tokens > room:
        raise bad_request(f"'min_tokens' is {body.min_tokens}; there is room for {room} tokens.", param="min_tokens")
    return Submit(
        request_id=origin.request_id,
        model=body.model,
        gateway=origin.gateway,
        prompt=prompt,
        sampling=_sampling(body, text.defaults, origin, bad_words or []),
        max_tokens=asked or room,
        open_ended=asked is None,
        min_tokens=body.min_tokens,
        stop_token_ids=stops,
        prompt_logprobs=_prompt_logprobs(body, len(prompt)),
        priority=body.priority,
        deadline=origin.deadline,
        context_id=body.prompt_cache_key,
    )


def make_output(
    body: GenerationOptions, text: CheckpointText, submit: Submit, reading: Reading | None = None, choice: int = 0
) -> Output:
    """The text that a submission's tokens become, which ends at the stop strings that the body asks for. With a
    `reading` it is taken apart."""
    ends = Ends(
        stop_strings(body),
        frozenset(submit.stop_token_ids),
        frozenset(body.stop_token_ids),
        body.include_stop_str_in_output,
        submit.min_tokens,
    )
    if not body.skip_special_tokens:
        decode: Decode = text.decode_all
    else:
        decode = text.decode if reading is None else text.decoder(reading.markers)
    plain = TextOutput(decode, submit.prompt, ends)
    return plain if reading is None else reading.output(plain, submit.prompt, choice)


def stop_tokens(body: GenerationOptions, text: CheckpointText) -> list[int]:
    """The tokens that end the text: those of the checkpoint, unless they are ignored, and those that the body names."""
    eos = () if body.ignore_eos else text.eos_token_ids
    return list(dict.fromkeys((*eos, *body.stop_token_ids)))


def _check_named(body: GenerationOptions, stops: list[int], vocab_size: int) -> None:
    for param, ids in (
        ("logit_bias", body.logit_bias),
        ("allowed_token_ids", body.allowed_token_ids or ()),
        ("stop_token_ids", body.stop_token_ids),
    ):
        check_token_ids(ids, vocab_size, param)
    if body.min_tokens and body.allowed_token_ids and set(body.allowed_token_ids) <= set(stops):
        raise bad_request(
            "'allowed_token_ids' has only tokens that end the text, which 'min_tokens' forbids; allow another one.",
            param="allowed_token_ids",
        )


def check_token_ids(token_ids: Collection[int], vocab_size: int, param: str) -> None:
    """Check that the model's vocabulary has all ids. Raises ApiError 400 naming the parameter."""
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        raise bad_request(f"{param!r} has token id {largest}; the vocabulary has ids below {vocab_size}.", param=param)


def _sampling(
    body: GenerationOptions, defaults: GenerationDefaults, origin: Origin, bad_words: list[list[int]]
) -> Sampling:
    return Sampling(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=max(0, defaults.top_k if body.top_k is None else body.top_k),
        seed=_seed_of(origin.request_id) if body.seed is None else choice_seed(body.seed, origin.choice),
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=defaults.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=sorted(body.logit_bias.items()),
        bad_words=bad_words,
        allowed_token_ids=body.allowed_token_ids or [],
        logprobs=_needed_logprobs(body),
    )


def _prompt_logprobs(body: GenerationOptions, tokens: int) -> PromptLogprobs | None:
    top = asked_prompt_logprobs(body)
    if top is None:
        return None
    most = MOST_PROMPT_LOGPROBS // (top + 1)
    if tokens > most:
        raise bad_request(
            f"Log-probabilities of {tokens} tokens of a prompt are too many; with {top} of the likeliest there may be "
            f"{most}.",
            param="logprobs" if body.prompt_logprobs is None else "prompt_logprobs",
        )
    return PromptLogprobs(top=top)


def _needed_logprobs(body: GenerationOptions) -> int | None:
    """What the worker has to tell: the likeliest of several choices are chosen by their log-probabilities."""
    asked = asked_logprobs(body)
    return 0 if asked is None and choices(body) > body.n else asked


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice of several, of which the first has the request's own."""
    return seed if choice == 0 else _seed_of(f"{seed}:{choice}")


def _seed_of(name: str) -> int:
    """A seed that is as unpredictable as `name`, and always the same for it."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1
