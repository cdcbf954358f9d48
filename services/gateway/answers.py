"""Answer bodies, as OpenAI and vLLM have them, and our own of the admin endpoints."""

from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from livescale.shared.messages.membership import Role, WorkerState
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import Decision

T = TypeVar("T")
StopReason = Literal["stop", "length"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """`cached_tokens` of the prompt had not to be computed."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What every completion object has."""

    id: str
    created: int
    model: str


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The text of one prompt, or a piece of it in a stream. `token_ids` with `return_token_ids` only."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: StopReason | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(Answer, frozen=True, kw_only=True):
    """Answer, and in streams every event, of /v1/completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The only choice."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: StopReason
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Answer, frozen=True, kw_only=True):
    """Answer of /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the message; the first one has the role."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the only choice."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: StopReason | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Answer, frozen=True, kw_only=True):
    """Every event of a streamed /v1/chat/completions."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a model stands in the cluster; null is unknown. `instances` counts those that take requests; `warning` says
    where answers are made up."""

    state: Literal["cold", "loading", "live", "ready", "failed"] | None
    instances: int | None
    error: str | None = None
    warning: str | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's model object, vLLM's `root`, `parent` and `max_model_len`, and our `livescale`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "livescale"
    root: str
    parent: None = None
    max_model_len: int
    permission: list[None] = []
    livescale: ModelStatus


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A list, as OpenAI wraps them."""

    object: Literal["list"] = "list"
    data: list[T]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance: its workers, rank 0 first, and the least advanced of their states."""

    id: str
    model: str
    role: Role | None
    state: WorkerState
    workers: list[str]
    ready_blocks: int
    total_blocks: int


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /detokenize."""

    prompt: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway can reach; `reason` says why it cannot serve, `warning` where answers are made up."""

    status: Literal["ok", "unavailable"]
    bus: bool
    router: bool
    models: list[str]
    reason: str | None = None
    warning: str | UnsetType = UNSET


class Live(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Version(msgspec.Struct, frozen=True):
    """The version of livescale."""

    version: str


CardList = Listing[ModelCard]
EntryList = Listing[ModelEntry]
InstanceList = Listing[Instance]
DecisionList = Listing[Decision]
