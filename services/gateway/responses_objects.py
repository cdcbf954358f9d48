"""The objects that clients of /v1/responses get: responses, and the typed events of their streams."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from livescale.services.gateway.errors import ErrorDetail
from livescale.services.gateway.logprobs import ContentLogprob
from livescale.services.gateway.responses_request import (
    FunctionTool,
    ReasoningOptions,
    ResponsesToolChoice,
    TextOptions,
)

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """A part of a message: text that the model has generated."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ContentLogprob] = []


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """An output item: the model's message, in parts."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """A part of a reasoning item: what the model thought."""

    text: str


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's reasoning before its answer; nothing sums it up."""

    id: str
    status: ItemStatus
    summary: list[Any] = []
    content: list[ReasoningText] = []


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A function that the model calls. What it answers comes back under the `call_id`."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str = ""


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(msgspec.Struct, frozen=True):
    """`cached_tokens` of the input did not have to be computed."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """`reasoning_tokens` were generated before the answer proper."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """How many tokens a response took: read, generated, and of these how many to reason."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why the text ends before the model ended it."""

    reason: Literal["max_output_tokens"]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response, whole or as it is so far, with OpenAI's fields."""

    id: str
    created_at: int
    model: str
    object: Literal["response"] = "response"
    status: ResponseStatus
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    error: ErrorDetail | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    background: bool = False
    store: bool = True
    parallel_tool_calls: bool = True
    tool_choice: ResponsesToolChoice = "auto"
    tools: list[FunctionTool] = []


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream. Its `type` says which of the other fields it has."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[ContentLogprob] | UnsetType = UNSET


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
