"""Request bodies: OpenAI's and vLLM's names, types and bounds.

Both the checks and the documentation are made from them. What several parameters say together is told last.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from livescale.services.gateway.conversation import Conversation
from livescale.services.gateway.options import (
    AnswerOptions,
    Choices,
    RequestPriority,
    RequestTimeout,
    TopLogprobs,
)
from livescale.services.gateway.repetition import RepetitionDetection
from livescale.services.gateway.tools import ToolChoice, Tools
from livescale.shared.messages.membership import Role
from livescale.shared.messages.message import Amount, Count, Positive, TokenId
from livescale.shared.messages.model_spec import (
    Disaggregation,
    ModelPriority,
    ModelSpec,
    Path,
    ReasoningParser,
    Share,
    TensorParallelSize,
    ToolCallParser,
)
from livescale.shared.messages.parameters import DType, KvCacheDType, Layout
from livescale.shared.messages.registry import Register

ModelName = Annotated[str, Meta(description="A registered model; GET /v1/models lists them")]
ModelOrOnly = Annotated[str, Meta(description="A registered model; may be left out where there is only one")]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that are allowed for streams only."""

    include_usage: Annotated[bool, Meta(description="A last chunk with usage and without choices")] = False
    continuous_usage_stats: Annotated[bool, Meta(description="With include_usage: usage so far in every chunk")] = False


class GenerationOptions(AnswerOptions, frozen=True, kw_only=True):
    """What both generating endpoints understand. A parameter that is null is the same as one that is absent."""

    model: ModelOrOnly = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Tokens to generate at most")] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None,
        Meta(description="Cut a prompt to this many tokens; -1: to as many as the context has room for"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"], Meta(description="Where a prompt is cut: its beginning, or its end")
    ] = "left"
    prompt_logprobs: Annotated[
        TopLogprobs | None,
        Meta(description="Return the log-probabilities of the prompt's tokens, and of this many likeliest ones"),
    ] = None
    repetition_detection: Annotated[
        RepetitionDetection | None, Meta(description="End an answer that repeats itself, with this finish_reason")
    ] = None
    return_tokens_as_token_ids: Annotated[bool, Meta(description="Name tokens token_id:ID in log-probabilities")] = (
        False
    )
    return_token_ids: Annotated[bool, Meta(description="Add prompt_token_ids and token_ids to the answer")] = False
    return_token_offsets: Annotated[
        bool, Meta(description="For /render: add token_offsets, where each token begins and ends in the text")
    ] = False
    return_mm_kwargs: Annotated[bool, Meta(description="For /render; without effect, as texts have none")] = True
    mm_payload: Annotated[Literal["tensors", "none"], Meta(description="For /render; without effect")] = "tensors"
    stream_interval: Annotated[
        int, Meta(description="Tokens in each event of a stream after the first", ge=1, le=2**31 - 1)
    ] = 1
    request_id: Annotated[
        Annotated[str, Meta(pattern="^[!-~]+$", max_length=128)] | None,
        Meta(description="Id of the request, unless the header x-request-id gives one"),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Share KV of prompts that begin alike with requests of this salt and API key only"),
    ] = None
    session_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Names a conversation, as prompt_cache_key does, where that is not given"),
    ] = None
    prompt_cache_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)] | None,
        Meta(description="Names a conversation: the KV of its prompt and answer is kept for its next request"),
    ] = None
    priority: RequestPriority = 0
    timeout: RequestTimeout = None


class CompletionRequest(GenerationOptions, frozen=True, kw_only=True):
    """POST /v1/completions. `max_tokens` is 16 by default, and may be 0 with `echo`."""

    max_tokens: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Tokens to generate at most")] = None
    echo: Annotated[bool, Meta(description="The prompt comes first, and with logprobs its log-probabilities")] = False

    add_special_tokens: Annotated[bool, Meta(description="Begin a text as the tokenizer does")] = True
    logprobs: Annotated[
        TopLogprobs | bool | None,
        Meta(description="Return the log-probability of each token, and of this many likeliest ones"),
    ] = None
    best_of: Annotated[
        Choices | None, Meta(description="Generate this many choices, and return the `n` likeliest of them")
    ] = None

    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]],
        Meta(description="A text, a list of texts, the token ids of a text, or a list of those"),
    ]


class ChatRequest(GenerationOptions, frozen=True, kw_only=True):
    """POST /v1/chat/completions. By default up to as many tokens as the context has room for."""

    messages: Conversation
    add_generation_prompt: Annotated[
        bool | None, Meta(description="Ask for the assistant's turn; by default, unless a message is continued")
    ] = None
    continue_final_message: Annotated[bool, Meta(description="Go on with the last message")] = False
    add_special_tokens: Annotated[bool, Meta(description="Add the tokenizer's to those of the template")] = False
    echo: Annotated[bool, Meta(description="A last message of the assistant's comes before the answer")] = False
    return_prompt_text: Annotated[bool, Meta(description="Add prompt_text, the rendered messages")] = False
    chat_template: Annotated[
        str | None, Meta(description="Used for these messages where --trust-request-chat-template allows it")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="Variables for the chat template, such as enable_thinking")
    ] = None
    documents: Annotated[list[dict[str, str]] | None, Meta(description="A variable for the chat template")] = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Meta(description="A variable for the chat template; none also says enable_thinking: false"),
    ] = None
    tools: Annotated[Tools | None, Meta(description="Functions that the model may call")] = None
    tool_choice: Annotated[
        ToolChoice | None,
        Meta(description="Whether the model calls tools: none, auto (the default), required, or this one"),
    ] = None
    parallel_tool_calls: Annotated[bool, Meta(description="With false, only the first call is returned")] = True
    include_reasoning: Annotated[bool, Meta(description="With false, reasoning is left out of the answer")] = True
    logprobs: Annotated[bool, Meta(description="Return the log-probability of each token")] = False
    top_logprobs: Annotated[
        TopLogprobs | None, Meta(description="With logprobs: also those of this many likeliest tokens")
    ] = None
    max_completion_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="The newer name of max_tokens")
    ] = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize: give `prompt` or `messages`."""

    model: ModelOrOnly = ""
    prompt: str | None = None
    messages: Conversation | None = None
    add_special_tokens: Annotated[bool, Meta(description="With prompt: begin it as /v1/completions would")] = True
    add_generation_prompt: Annotated[bool, Meta(description="With messages: ask for the assistant's turn")] = True


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /detokenize: the text of these token ids."""

    model: ModelOrOnly = ""
    tokens: list[TokenId]


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /admin/v1/scale: have this many instances of a model."""

    model: ModelName
    instances: Count


class RoleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /admin/v1/role: have the instance that this worker leads prefer this work."""

    worker: Annotated[str, Meta(min_length=1, max_length=256)]
    role: Role


class BoundsRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ScalingBounds"):
    """The load at which instances are added (hi) and given back (lo), as a part of what one instance can do."""

    prefill_lo: Annotated[Share | None, Meta(description="Seconds of waiting prompts per instance")] = None
    prefill_hi: Annotated[Share | None, Meta(description="Seconds of waiting prompts per instance")] = None
    decode_lo: Annotated[Share | None, Meta(description="Share of KV blocks or slots")] = None
    decode_hi: Annotated[Share | None, Meta(description="Share of KV blocks or slots")] = None
    kv_lo: Annotated[Share | None, Meta(description="Seconds of KV still to be sent, per instance")] = None
    kv_hi: Annotated[Share | None, Meta(description="Seconds of KV still to be sent, per instance")] = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ModelSpec"):
    """POST /admin/v1/models. A field that is left out stays as it is; a new model gets the system's defaults."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="What clients call it")]
    path: Annotated[Path | None, Meta(description="A directory in Hugging Face format on all hosts, or a hub id")] = (
        None
    )
    dtype: DType | None = None
    min_instances: Count | None = None
    max_instances: Positive | None = None
    bounds: BoundsRequest = BoundsRequest()
    upscale_delay_s: Annotated[Amount | None, Meta(description="Seconds of too few instances before one is added")] = (
        None
    )
    downscale_delay_s: Annotated[
        Amount | None, Meta(description="Seconds without need for an instance before it is given back")
    ] = None
    downscale_to_zero_delay_s: Annotated[Amount | None, Meta(description="The same for the last instance")] = None
    max_model_len: Annotated[Positive | None, Meta(description="Most tokens of a request, prompt and output")] = None
    tensor_parallel_size: Annotated[
        TensorParallelSize | None, Meta(description="Number of workers that make up an instance")
    ] = None
    layout: Annotated[Layout | None, Meta(description="Order of bfloat16 matrices; panels is for workers on CPUs")] = (
        None
    )
    kv_cache_dtype: Annotated[
        KvCacheDType | None, Meta(description="fp8: keys and values are rounded to e4m3 as they are kept")
    ] = None
    priority: Annotated[
        ModelPriority | None, Meta(description="Models of higher priority get workers first where there are too few")
    ] = None
    disaggregation: Annotated[
        Disaggregation | None,
        Meta(description="Whether some instances prefill and others decode; auto: where more requests are in time"),
    ] = None
    tool_call_parser: Annotated[
        ToolCallParser | None, Meta(description="How it writes calls of tools; by default as its chat template says")
    ] = None
    reasoning_parser: Annotated[
        ReasoningParser | None, Meta(description="How it writes reasoning; by default as its chat template says")
    ] = None

    def register(self) -> Register:
        """The message for the registry; it names the fields that were given."""
        bounds, said = _given(self.bounds), {**_given(self), "bounds": {}}
        spec = msgspec.convert({"path": "", **said, "bounds": bounds}, ModelSpec)
        return Register(spec=spec, named=sorted([*said.keys() - {"bounds"}, *(f"bounds.{part}" for part in bounds)]))


def _given(body: msgspec.Struct) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}


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
