"""The body of POST /v1/responses, and the chat that it asks for. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from livescale.services.gateway.bodies import ChatRequest, StreamOptions
from livescale.services.gateway.conversation import CalledFunction, ChatMessage, TextPart, ToolCall
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.options import JsonObjectFormat, JsonSchemaFormat, NamedSchema, TextFormat, TopLogprobs
from livescale.services.gateway.tools import (
    MOST_TOOLS,
    FunctionDefinition,
    FunctionName,
    NamedTool,
    Tool,
    ToolChoice,
)

LOGPROBS = "message.output_text.logprobs"
# What parameters of the chat are called here, by patterns of their names.
NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    r"response_format\.json_schema\.schema": "text.format.schema",
    "reasoning_effort": "reasoning.effort",
    r"tools\[(\d+)\]\.function\.(\S+)": r"tools[\1].\2",
    r"tool_choice\.function\.name": "tool_choice.name",
}


class InputPart(msgspec.Struct, frozen=True):
    """A part of an item's content: text that was put in, or that the model had put out."""

    text: str
    type: Literal["input_text", "output_text", "text"] = "input_text"


class InputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the conversation. Its id and status, as answers have them, say nothing here."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputPart]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class FunctionCallItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """An input item: a call that the model made earlier."""

    call_id: str
    name: str
    arguments: str = "{}"
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(msgspec.Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """An input item: what a called function answered."""

    call_id: str
    output: str | list[InputPart]
    id: str | None = None
    status: str | None = None


class ReasoningPart(msgspec.Struct, frozen=True):
    """A part of a reasoning item that a client sends back."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Reasoning of an earlier answer. The chat template decides whether the model sees it again."""

    id: str | None = None
    summary: Annotated[list[dict[str, Any]], Meta(description="Accepted and ignored")] = []
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None
    status: str | None = None


InputItem = InputMessage | FunctionCallItem | FunctionCallOutput | ReasoningItem


class NamedSchemaFormat(NamedSchema, frozen=True, tag_field="type", tag="json_schema"):
    """The form of an answer: JSON by a named schema."""


class TextOptions(msgspec.Struct, frozen=True):
    """The form of an answer's text: free, JSON, or JSON by a schema."""

    format: TextFormat | JsonObjectFormat | NamedSchemaFormat = TextFormat()
    verbosity: Annotated[str | None, Meta(description="Accepted and ignored")] = None


class ReasoningOptions(msgspec.Struct, frozen=True):
    """How much the model is to reason before it answers."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Annotated[str | None, Meta(description="Accepted and ignored")] = None
    generate_summary: Annotated[str | None, Meta(description="The older name of summary")] = None
    context: Annotated[
        Literal["auto"] | None, Meta(description="The chat template decides what earlier reasoning the model sees")
    ] = None
    mode: Annotated[Literal["standard"] | None, Meta(description="There are no others")] = None


class FunctionTool(FunctionDefinition, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A function that the model may call. No tools run at the server."""


class ChosenFunction(msgspec.Struct, frozen=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    """The function that the model has to call."""

    name: str


ResponsesToolChoice = Literal["none", "auto", "required"] | ChosenFunction


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/responses: answer the input, after the conversation of an earlier response if one is named."""

    input: str | list[InputItem]
    model: Annotated[str, Meta(description="A registered model; may be left out where there is only one")] = ""
    instructions: Annotated[str | None, Meta(description="Comes first, for this response only")] = None
    previous_response_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)] | None,
        Meta(description="A stored response, whose conversation goes on"),
    ] = None
    stream: bool = False
    store: Annotated[bool, Meta(description="Keep the response, as long as the gateway keeps them")] = True
    background: Annotated[bool, Meta(description="Answer at once, and generate meanwhile; needs store")] = False
    max_output_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Tokens at most")] = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: TopLogprobs | None = None
    include: Annotated[
        list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]],
        Meta(max_length=8, description="Reasoning is told anyway, and not encrypted"),
    ] = []
    tools: Annotated[list[FunctionTool], Meta(max_length=MOST_TOOLS)] = []
    tool_choice: Annotated[
        ResponsesToolChoice, Meta(description="Whether the model calls functions: none, auto, required, or this one")
    ] = "auto"
    parallel_tool_calls: Annotated[bool, Meta(description="With false, only the first call is told")] = True
    truncation: Annotated[
        Literal["auto", "disabled"], Meta(description="auto: cut a conversation that is too long at its beginning")
    ] = "disabled"
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    metadata: Annotated[dict[str, str], Meta(max_length=16)] = {}
    prompt_cache_key: Annotated[str, Meta(min_length=1, max_length=64)] | None = None

    @property
    def tells_logprobs(self) -> bool:
        return LOGPROBS in self.include or bool(self.top_logprobs)


def check_request(body: ResponsesRequest) -> None:
    """Check what the bounds of single fields cannot say. Raises ApiError 400."""
    if body.background and (body.stream or not body.store):
        raise bad_request("'background' needs 'store', and cannot be streamed.", param="background")
    if body.top_logprobs and LOGPROBS not in body.include:
        raise bad_request(f"'top_logprobs' is for requests that include {LOGPROBS!r}.", param="top_logprobs")


def messages_of(items: str | Sequence[InputItem]) -> list[ChatMessage]:
    """The items as messages of a chat. Reasoning and calls belong to the message of the assistant beside them."""
    if isinstance(items, str):
        return [ChatMessage(role="user", content=items)]
    messages: list[ChatMessage] = []
    for item in items:
        match item:
            case InputMessage(role="assistant", content=content):
                said = _open_turn(messages)
                if said.content is not None or said.tool_calls:  # another message follows
                    messages.append(said)
                    said = ChatMessage(role="assistant")
                messages.append(replace(said, content=_text(content)))
            case InputMessage(role=role, content=content):
                messages.append(ChatMessage(role=role, content=_text(content)))
            case FunctionCallOutput(call_id=call_id, output=output):
                messages.append(ChatMessage(role="tool", content=_text(output), tool_call_id=call_id))
            case FunctionCallItem(call_id=call_id, name=name, arguments=arguments):
                call = ToolCall(function=CalledFunction(name, arguments), id=call_id)
                said = _open_turn(messages)
                messages.append(replace(said, tool_calls=[*said.tool_calls, call]))
            case ReasoningItem(content=thoughts) if thoughts:
                thought = "".join(part.text for part in thoughts)
                messages.append(ChatMessage(role="assistant", reasoning_content=thought))
    return messages


def _open_turn(messages: list[ChatMessage]) -> ChatMessage:
    """Take out the message of the assistant that goes on; a new one where another one spoke last."""
    return messages.pop() if messages and messages[-1].role == "assistant" else ChatMessage(role="assistant")


def _text(content: str | list[InputPart]) -> str | list[TextPart]:
    return content if isinstance(content, str) else [TextPart(type="text", text=part.text) for part in content]


def chat_of(body: ResponsesRequest, earlier: list[ChatMessage]) -> ChatRequest:
    """The chat that the body asks for, after the messages of an `earlier` response. Raises ApiError 400 where nothing
    is said."""
    messages = [*earlier, *messages_of(body.input)]
    if not messages:
        raise bad_request("'input' has no message; give at least one.", param="input")
    if body.instructions is not None:
        messages = [ChatMessage(role="system", content=body.instructions), *messages]
    return ChatRequest(
        messages=messages,
        model=body.model,
        stream=body.stream,
        stream_options=StreamOptions(include_usage=True) if body.stream else None,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=body.tells_logprobs,
        top_logprobs=body.top_logprobs,
        truncate_prompt_tokens=-1 if body.truncation == "auto" else None,
        reasoning_effort=body.reasoning.effort,
        prompt_cache_key=body.prompt_cache_key,
        response_format=_format(body.text.format),
        tools=[_tool(tool) for tool in body.tools] or None,
        tool_choice=None if body.tool_choice == "auto" else _choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
    )


def _format(
    asked: TextFormat | JsonObjectFormat | NamedSchemaFormat,
) -> TextFormat | JsonObjectFormat | JsonSchemaFormat:
    if not isinstance(asked, NamedSchemaFormat):
        return asked
    return JsonSchemaFormat(NamedSchema(**msgspec.structs.asdict(asked)))


def _tool(tool: FunctionTool) -> Tool:
    return Tool(function=FunctionDefinition(**msgspec.structs.asdict(tool)))


def _choice(choice: ResponsesToolChoice) -> ToolChoice:
    return NamedTool(function=FunctionName(choice.name)) if isinstance(choice, ChosenFunction) else choice


def typed_items(body: dict[str, Any]) -> None:
    """Say of messages in the input what they are, as clients may leave that out."""
    items = body.get("input")
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict) and "role" in item:
            item.setdefault("type", "message")
