"""A conversation, as bodies of requests have it and chat templates read it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message's content. Other types than text are not supported."""

    type: Literal["text"]
    text: str


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model called. `arguments` is a JSON object, as text or as such."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A call that an assistant's message of the conversation made."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: Annotated[int | None, Meta(description="Accepted and ignored")] = None


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message of a conversation; text parts are joined with newlines. Tools that were called, and what they
    answered, are told to the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, Meta(description="The newer name of reasoning_content")] = None
    type: Annotated[Literal["text", "message"] | None, Meta(description="Accepted and ignored")] = None

    @property
    def text(self) -> str:
        """The content of the message as one text, whatever parts it came in."""
        content = self.content
        return content if isinstance(content, str) else "\n".join(part.text for part in content or [])


Conversation = Annotated[list[ChatMessage], Meta(min_length=1)]
