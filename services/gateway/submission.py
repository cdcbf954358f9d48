"""From a checked body and its prompts' tokens to the messages for the router, and to what its answer is made by. Pure.

The last checks are made here, those that need the model's vocabulary and context.
"""

import hashlib
from dataclasses import dataclass, field, replace
from typing import cast

from msgspec import Struct
from msgspec.structs import replace as with_fields

from livescale.services.gateway.bodies import (
    ChatRequest,
    CompletionRequest,
    GenerationOptions,
    asked_prompt_logprobs,
    asked_tokens,
    choices,
    needed_logprobs,
)
from livescale.services.gateway.checkpoint_text import CheckpointText, GenerationDefaults
from livescale.services.gateway.checks import check_choices, check_named, check_token_ids
from livescale.services.gateway.errors import bad_request, too_long
from livescale.services.gateway.models import Served
from livescale.services.gateway.options import stop_strings
from livescale.services.gateway.output import Decode, Output, TextEnds, TextOutput
from livescale.services.gateway.parsed_output import Reading
from livescale.services.gateway.repetition import RepetitionOutput
from livescale.shared.messages.requests import PromptLogprobs, Sampling, Submit

MOST_PROMPT_LOGPROBS = 30_000  # in one message of the bus, which takes a megabyte


@dataclass(frozen=True)
class Origin:
    """Where a submission comes from: its id, its gateway, its deadline in seconds since the epoch, and its client. It
    makes this `choice` of its prompt."""

    request_id: str
    gateway: str
    deadline: float
    choice: int = 0
    client: str = ""


@dataclass(frozen=True)
class TokenRules:
    """What a body says of its tokens, as a worker understands it: bad words as tokens, and a grammar, which is that of
    the body's `grammar_param`."""

    bad_words: list[list[int]] = field(default_factory=list)
    grammar: str = ""
    grammar_param: str | None = None


NO_RULES = TokenRules()


def truncated(body: GenerationOptions, prompt: list[int], context_tokens: int) -> list[int]:
    """The prompt, cut to as many tokens as the body asks for, or as the context has room for. Raises ApiError 400
    where none would be left."""
    if body.truncate_prompt_tokens is None:
        return prompt
    most = body.truncate_prompt_tokens
    if most == 0:
        raise bad_request("'truncate_prompt_tokens' is 0; give at least 1, or -1.", param="truncate_prompt_tokens")
    if most < 0:
        most = max(0, context_tokens - (asked_tokens(body) or 1))
    if len(prompt) <= most:
        return prompt
    return prompt[:most] if body.truncation_side == "right" else prompt[len(prompt) - most :]


def split_prompts(
    prompt: str | list[str | int | list[int]], max_prompts: int, param: str = "prompt"
) -> list[str | list[int]]:
    """The prompts: texts, or token ids. Raises ApiError 400 for a mixture, for none, and for too many."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))  # one pass in C, as there may be thousands of token ids
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if not prompt or int in kinds or len(kinds) > 1:
        raise bad_request(
            f"{param!r} must be one text, one list of token ids, or a list of several of one kind.", param=param
        )
    if len(prompt) > max_prompts:
        raise bad_request(
            f"{param!r} has {len(prompt)} prompts; a request may have at most {max_prompts}.", param=param
        )
    return cast("list[str | list[int]]", prompt)


def make_submit(
    body: GenerationOptions,
    prompt: list[int],
    text: CheckpointText,
    context_tokens: int,
    origin: Origin,
    rules: TokenRules = NO_RULES,
) -> Submit:
    """The message for the router. `rules` are those of the body. Raises ApiError 400 where the prompt is
    empty or too long for the context, or something has ids outside the vocabulary."""
    param = "messages" if isinstance(body, ChatRequest) else "prompt"
    check_token_ids(prompt, text.vocab_size, param)
    stops = stop_tokens(body, text)
    check_named(body, stops, text.vocab_size)
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
        sampling=_sampling(body, text.defaults, origin, rules),
        max_tokens=asked or room,
        open_ended=asked is None,
        min_tokens=body.min_tokens,
        stop_token_ids=stops,
        prompt_logprobs=_prompt_logprobs(body, len(prompt)) if origin.choice == 0 else None,  # they are all choices'
        priority=body.priority,
        deadline=origin.deadline,
        context_id=body.prompt_cache_key or _session(body.session_id),
        cache_salt=salt_of(origin.client, body.cache_salt),
    )


def make_output(
    body: GenerationOptions, text: CheckpointText, submit: Submit, reading: Reading | None = None, choice: int = 0
) -> Output:
    """The text that a submission's tokens become, which ends at the stop strings that the body asks for. With a
    `reading` it is taken apart."""
    ends = TextEnds(
        stop_strings(body),
        frozenset(submit.stop_token_ids),
        frozenset(body.stop_token_ids),
        body.include_stop_str_in_output,
        submit.min_tokens,
    )
    # Where special tokens are left out, those stay that tell calls of tools and reasoning apart.
    decode = decoding(body, text)
    if reading is not None and body.skip_special_tokens:
        decode = text.decoder(reading.markers)
    shown = isinstance(body, CompletionRequest) and body.echo
    plain: Output = TextOutput(decode, submit.prompt, ends, shown=shown)
    if body.repetition_detection is not None:
        plain = RepetitionOutput(plain, body.repetition_detection, submit.min_tokens)
    return plain if reading is None else reading.output(plain, submit.prompt, choice)


def decoding(body: GenerationOptions, text: CheckpointText) -> Decode:
    """How the body wants tokens to be read: without special tokens, or with them."""
    return text.decode if body.skip_special_tokens else text.decode_all


def stop_tokens(body: GenerationOptions, text: CheckpointText) -> list[int]:
    """The tokens that end the text: those of the checkpoint, unless they are ignored, and those that the body names."""
    eos = () if body.ignore_eos else text.eos_token_ids
    return list(dict.fromkeys((*eos, *body.stop_token_ids)))


def _sampling(body: GenerationOptions, defaults: GenerationDefaults, origin: Origin, rules: TokenRules) -> Sampling:
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
        bad_words=rules.bad_words,
        allowed_token_ids=body.allowed_token_ids or [],
        logprobs=needed_logprobs(body),
        logprob_token_ids=body.logprob_token_ids,
        grammar=rules.grammar,
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


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice of several, of which the first has the request's own."""
    return seed if choice == 0 else _seed_of(f"{seed}:{choice}")


def _seed_of(name: str) -> int:
    """A seed that is as unpredictable as `name`, and always the same for it."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1


def _session(id: str | None) -> str | None:
    """The conversation that a session is, by a name that is short enough."""
    return None if id is None else f"session-{hashlib.blake2b(id.encode(), digest_size=16).hexdigest()}"


def salt_of(client: str, salt: str | None) -> str | None:
    """The salt as workers know it. Clients that give the same one do not share it, as a name has no NUL."""
    return None if salt is None else hashlib.blake2b(f"{client}\0{salt}".encode(), digest_size=16).hexdigest()


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


def fitted(asked: Prompts, most_choices: int) -> Prompts:
    """The same, with prompts that are cut where the body asks for it. Raises ApiError 400 where they have too many
    choices together, or nothing would be left of one."""
    check_choices(asked.body, len(asked.prompts), most_choices)
    prompts = [truncated(asked.body, prompt, asked.context_limit) for prompt in asked.prompts]
    return with_fields(asked, prompts=prompts)


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
