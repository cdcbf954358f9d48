"""What the bounds of a body's single fields cannot say: parameters contradict each other, or are too much together.

Pure.
"""

from collections.abc import Collection

from livescale.services.gateway.beams import MOST_BEAMS
from livescale.services.gateway.bodies import (
    ChatRequest,
    CompletionRequest,
    GenerationOptions,
    asked_logprobs,
    asked_prompt_logprobs,
    asked_tokens,
    choices,
    only_prompt,
)
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.options import TextFormat, stop_strings
from livescale.services.gateway.repetition import check_repetition
from livescale.services.gateway.tools import check_tools

MOST_CHARACTERS = 4_096  # of all stop strings, and of all bad words; every token is compared with them
RESERVED_VARIABLES = frozenset(
    ("messages", "add_generation_prompt", "continue_final_message", "chat_template", "tools")
)


def check_options(body: GenerationOptions) -> None:
    """Check what the bounds of single fields cannot say. Raises ApiError 400."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("'stream_options' is for requests with 'stream': true.", param="stream_options")
    limit = asked_tokens(body)
    if limit is not None and body.min_tokens > limit:
        raise bad_request(f"'min_tokens' is more than the {limit} tokens asked for.", param="min_tokens")
    if body.repetition_detection is not None:
        check_repetition(body.repetition_detection)
    _check_logprobs(body)
    _check_beams(body)
    _check_texts(body)
    if isinstance(body, ChatRequest):
        _check_limits(body)
        _check_rendering(body)
        check_tools(body.tools, body.tool_choice)
    best_of = choices(body)
    if best_of < body.n:
        raise bad_request(f"'best_of' is less than 'n'; give at least {body.n}.", param="best_of")
    if best_of > body.n and body.stream:
        raise bad_request("'best_of' more than 'n' cannot be streamed; leave one of them out.", param="best_of")


def _check_limits(body: ChatRequest) -> None:
    """The older name and the newer one of the same limit."""
    older, newer = body.max_tokens, body.max_completion_tokens
    if older is not None and newer is not None and older != newer:
        raise bad_request(
            f"'max_tokens' is {older} and 'max_completion_tokens' is {newer}; give one of them.", param="max_tokens"
        )


def _check_rendering(body: ChatRequest) -> None:
    """Check what is said of the template. Raises ApiError 400."""
    if body.add_generation_prompt and body.continue_final_message:
        raise bad_request(
            "'add_generation_prompt' and 'continue_final_message' exclude each other; give one of them.",
            param="continue_final_message",
        )
    reserved = sorted(RESERVED_VARIABLES.intersection(body.chat_template_kwargs or ()))
    if reserved:
        raise bad_request(
            f"'chat_template_kwargs' has {reserved[0]!r}, which the request says elsewhere; leave it out.",
            param=f"chat_template_kwargs.{reserved[0]}",
        )


def _check_texts(body: GenerationOptions) -> None:
    for param, texts in (("stop", stop_strings(body)), ("bad_words", body.bad_words)):
        length = sum(map(len, texts))
        if length > MOST_CHARACTERS:
            raise bad_request(f"{param!r} has {length} characters; {MOST_CHARACTERS} are the most.", param=param)
    if not all(map(str.strip, body.bad_words)):
        raise bad_request("'bad_words' has a word of nothing but blanks; leave it out.", param="bad_words")


def _check_logprobs(body: GenerationOptions) -> None:
    if isinstance(body, ChatRequest) and body.top_logprobs and not body.logprobs:
        raise bad_request("'top_logprobs' is for requests with 'logprobs': true.", param="top_logprobs")
    if body.logprob_token_ids and asked_logprobs(body) is None:
        raise bad_request("'logprob_token_ids' is for requests with 'logprobs'.", param="logprob_token_ids")
    if isinstance(body, CompletionRequest) and only_prompt(body) and not body.echo:
        raise bad_request("'max_tokens' may be 0 with 'echo': true only; give at least 1.", param="max_tokens")
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("'prompt_logprobs' cannot be streamed; leave one of them out.", param="prompt_logprobs")
    if isinstance(body, CompletionRequest) and body.logprobs is True:
        raise bad_request(
            "'logprobs' must be a number here: how many of the likeliest tokens to tell.", param="logprobs"
        )


def _check_beams(body: GenerationOptions) -> None:
    """A search compares continuations as the model sees them, so nothing else may say what is likely."""
    if not body.use_beam_search:
        if body.length_penalty != 1:
            raise bad_request("'length_penalty' is for requests with 'use_beam_search': true.", "length_penalty")
        return
    if body.n > MOST_BEAMS:
        raise bad_request(f"'n' is {body.n}; with 'use_beam_search' there are {MOST_BEAMS} at most.", "n")
    best_of = body.best_of if isinstance(body, CompletionRequest) else None
    others = {
        "best_of": best_of not in (None, body.n),
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty not in (None, 1),
        "logit_bias": body.logit_bias,
        "bad_words": body.bad_words,
        "allowed_token_ids": body.allowed_token_ids,
        "min_tokens": body.min_tokens,
        "prompt_logprobs": asked_prompt_logprobs(body) is not None,
        "logprob_token_ids": body.logprob_token_ids,
        "response_format": not isinstance(body.response_format, TextFormat | None),
        "structured_outputs": body.structured_outputs,
        "guided_json": body.guided_json,
        "guided_regex": body.guided_regex,
        "guided_choice": body.guided_choice,
        "guided_grammar": body.guided_grammar,
        "tools": isinstance(body, ChatRequest) and body.tools and body.tool_choice != "none",
    }
    for param, given in others.items():
        if given:
            raise bad_request(f"{param!r} does not go with 'use_beam_search'; leave one of them out.", param)


def check_template(body: ChatRequest, *, is_trusted: bool) -> None:
    """Check that the body brings no template of its own, unless the operator trusts those. Raises ApiError 400."""
    if body.chat_template is not None and not is_trusted:
        raise bad_request(
            "'chat_template' is refused: the operator allows it with --trust-request-chat-template of the gateway, "
            "or LIVESCALE_TRUST_REQUEST_CHAT_TEMPLATE=1; leave it out.",
            "chat_template",
            code="unsupported_parameter",
        )


def check_choices(body: GenerationOptions, prompts: int, most: int) -> None:
    """Check that the prompts have no more than `most` choices together. Raises ApiError 400."""
    count = prompts * choices(body)
    if count > most and choices(body) > 1:
        param = "n" if choices(body) == body.n else "best_of"
        raise bad_request(f"{param!r} asks for {count} choices; a request may have at most {most}.", param=param)


def check_named(body: GenerationOptions, stops: list[int], vocab_size: int) -> None:
    """Check the token ids that a body names; `stops` end the text. Raises ApiError 400."""
    for param, ids in (
        ("logit_bias", body.logit_bias),
        ("allowed_token_ids", body.allowed_token_ids or ()),
        ("stop_token_ids", body.stop_token_ids),
        ("logprob_token_ids", body.logprob_token_ids),
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
