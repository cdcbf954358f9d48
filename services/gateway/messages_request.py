"""The body of POST /v1/messages, as Anthropic's clients send it, and the chat that it asks for. Pure."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from livescale.services.gateway.bodies import ChatRequest, StreamOptions
from livescale.services.gateway.conversation import CalledFunction, ChatMessage, ToolCall
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.options import JsonSchemaFormat, NamedSchema, Schema, StopString
from livescale.services.gateway.tools import (
    MOST_TOOLS,
    FunctionDefinition,
    FunctionName,
    NamedTool,
    Tool,
    ToolChoice,
)

# What parameters of the chat are called here, by patterns of their names.
NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    r"tools\[(\d+)\]\.function\.parameters(\S*)": r"tools[\1].input_schema\2",
    r"tools\[(\d+)\]\.function\.(\S+)": r"tools[\1].\2",
    r"tool_choice\.function\.name": "tool_choice.name",
}

CacheControl = Annotated[
    dict[str, Any] | None, Meta(description="Accepted and ignored: prompts that begin alike share their KV anyway")
]


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A block of a message, or of the system prompt: text as it is."""

    text: str
    cache_control: CacheControl = None
    citations: Annotated[list[Any] | None, Meta(description="Accepted and ignored")] = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking", forbid_unknown_fields=True):
    """What the model thought before an earlier answer. Nothing is signed here."""

    thinking: str
    signature: Annotated[str, Meta(description="Accepted and ignored")] = ""


class RedactedThinking(msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Thoughts of another service that cannot be read, and are left out."""

    data: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use", forbid_unknown_fields=True):
    """A block of a message in the history: a call that the model made."""

    id: str
    name: str
    input: dict[str, Any] = {}
    cache_control: CacheControl = None
    caller: Annotated[dict[str, Any] | None, Meta(description="Accepted and ignored")] = None


class ToolResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_result", forbid_unknown_fields=True):
    """A block of a message in the history: what a called tool answered."""

    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: Annotated[bool | None, Meta(description="Accepted and ignored; say it in the content")] = None
    cache_control: CacheControl = None


Block = TextBlock | ThinkingBlock | RedactedThinking | ToolUseBlock | ToolResultBlock
BLOCKS = frozenset(("text", "thinking", "redacted_thinking", "tool_use", "tool_result"))


class MessageParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of the conversation, by the user or by the model."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class CustomTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call. Those that Anthropic runs itself are not here."""

    name: str
    description: str | None = None
    input_schema: Schema = {}
    type: Literal["custom"] = "custom"
    strict: bool | None = None
    cache_control: CacheControl = None
    eager_input_streaming: Annotated[bool | None, Meta(description="Accepted and ignored: it always does")] = None


class MessagesToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the model calls tools: as it likes, one of them, the one that is named, or none."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the model is to think before it answers."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="A hint that is ignored; max_tokens bounds all")
    ] = None
    display: Annotated[
        Literal["summarized", "omitted"] | None, Meta(description="omitted: the thoughts are not told")
    ] = None


class OutputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of an answer: JSON by a schema."""

    schema: Schema = {}
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much effort an answer is worth, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens: how many tokens this conversation has."""

    messages: Annotated[list[MessageParam], Meta(min_length=1)]
    model: Annotated[str, Meta(description="A registered model; may be left out where there is only one")] = ""
    system: Annotated[str | list[TextBlock], Meta(description="Comes first")] = ""
    tools: Annotated[list[CustomTool], Meta(max_length=MOST_TOOLS, description="Tools that the model may call")] = []
    tool_choice: MessagesToolChoice | None = None
    thinking: Annotated[Thinking | None, Meta(description="Without it the model is told not to think")] = None
    output_config: OutputConfig = OutputConfig()


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """POST /v1/messages: answer a conversation as Anthropic's API does."""

    max_tokens: Annotated[int, Meta(ge=1, description="Tokens at most")]
    stream: bool = False
    stop_sequences: Annotated[list[StopString], Meta(max_length=64, description="Strings that end the text")] = []
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None


def chat_of_messages(body: CountRequest) -> ChatRequest:
    """The chat that the body asks for. Raises ApiError 400."""
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    form, choice = body.output_config.format, body.tool_choice
    messages = list(_messages(body))
    last = messages[-1]
    chat = ChatRequest(
        messages=messages,
        model=body.model,
        continue_final_message=last.role == "assistant" and not last.tool_calls,
        tools=[_tool(tool) for tool in body.tools] or None,
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        chat_template_kwargs={"enable_thinking": thinks},
        include_reasoning=thinks and body.thinking is not None and body.thinking.display != "omitted",
        reasoning_effort=body.output_config.effort,
        response_format=None if form is None else JsonSchemaFormat(NamedSchema(name="answer", schema=form.schema)),
    )
    if not isinstance(body, MessagesRequest):
        return chat
    return msgspec.structs.replace(
        chat,
        stream=body.stream,
        stream_options=StreamOptions(include_usage=True, continuous_usage_stats=True) if body.stream else None,
        max_completion_tokens=body.max_tokens,
        stop=body.stop_sequences or None,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
    )


def _messages(body: CountRequest) -> Iterator[ChatMessage]:
    if body.system:
        yield ChatMessage(role="system", content=_text(body.system))
    for place, message in enumerate(body.messages):
        if isinstance(message.content, str):
            yield ChatMessage(role=message.role, content=message.content)
        elif message.role == "assistant":
            yield _of_assistant(message.content, f"messages[{place}].content")
        else:
            yield from _of_user(message.role, message.content, f"messages[{place}].content")


def _of_assistant(blocks: list[Block], path: str) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case ToolUseBlock(id=id, name=name, input=given):
                calls.append(ToolCall(function=CalledFunction(name, given), id=id))
            case ToolResultBlock():
                raise bad_request("A 'tool_result' belongs in a message with the role 'user'.", path)
    return ChatMessage(
        role="assistant",
        content="".join(texts) if texts or not calls else None,
        tool_calls=calls,
        reasoning_content="".join(thoughts) or None,
    )


def _of_user(role: Literal["user", "system"], blocks: list[Block], path: str) -> Iterator[ChatMessage]:
    """What tools answered, and then what the user says."""
    said = []
    for block in blocks:
        match block:
            case TextBlock():
                said.append(block)
            case ToolResultBlock(tool_use_id=id, content=content):
                yield ChatMessage(role="tool", content=_text(content), tool_call_id=id)
            case ThinkingBlock() | RedactedThinking() | ToolUseBlock():
                raise bad_request("Thoughts and calls of tools belong in messages with the role 'assistant'.", path)
    if said or not blocks:
        yield ChatMessage(role=role, content=_text(said))


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _tool(tool: CustomTool) -> Tool:
    schema = tool.input_schema or None
    return Tool(
        function=FunctionDefinition(
            name=tool.name, description=tool.description, parameters=schema, strict=tool.strict or None
        )
    )


def _choice(choice: MessagesToolChoice) -> ToolChoice:
    match choice.type:
        case "tool":
            if choice.name is None:
                raise bad_request("'tool_choice' of type 'tool' needs the 'name' of a tool.", "tool_choice.name")
            return NamedTool(function=FunctionName(choice.name))
        case "any":
            return "required"
        case plain:
            return plain
