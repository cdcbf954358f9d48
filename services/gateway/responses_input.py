"""The items that a response was made of, page by page, as their client may list them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.responses_objects import (
    OutputCall,
    OutputReasoning,
    OutputText,
    ReasoningText,
)

USUAL_ITEMS, MOST_ITEMS = 20, 100  # on a page, as OpenAI has it
QUERY = (
    ("after", "The id of the item after which the page begins"),
    ("limit", f"Most items to return, up to {MOST_ITEMS}; {USUAL_ITEMS} by default"),
    ("order", "asc, or desc (the default): the newest first"),
)


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    """A text of an input message; those of the model are OutputText."""

    text: str


class ListedMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """An input item: a message. What the model said is told as it was told then."""

    id: str
    role: Literal["system", "developer", "user", "assistant"]
    content: list[InputText | OutputText]
    status: Literal["completed"] = "completed"


class ListedResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    """An input item: what a called function answered."""

    id: str
    call_id: str
    output: str
    status: Literal["completed"] = "completed"


ListedItem = ListedMessage | ListedResult | OutputReasoning | OutputCall


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/responses/{id}/input_items: a page of items."""

    object: Literal["list"] = "list"
    data: list[ListedItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


def input_items(response_id: str, messages: Sequence[ChatMessage]) -> list[ListedItem]:
    """The messages of a conversation as items, the oldest first. Their ids are always the same."""
    name = response_id.partition("-")[2]
    items: list[ListedItem] = []
    for message in messages:
        for item in _items(message):
            items.append(msgspec.structs.replace(item, id=f"{item.id}-{name}-in-{len(items)}"))
    return items


def _items(message: ChatMessage) -> Iterator[ListedItem]:
    """The items of one message; each has the beginning of its id."""
    texts = [message.content] if isinstance(message.content, str) else [part.text for part in message.content or []]
    match message.role:
        case "tool":
            yield ListedResult(id="fco", call_id=message.tool_call_id or "", output=message.text)
        case "assistant":
            if message.reasoning_content:
                thought = [ReasoningText(message.reasoning_content)]
                yield OutputReasoning(id="rs", status="completed", content=thought)
            if texts:
                yield ListedMessage(id="msg", role="assistant", content=[OutputText(text=text) for text in texts])
            for call in message.tool_calls:
                given, name = call.function.arguments, call.function.name
                arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
                yield OutputCall(id="fc", status="completed", call_id=call.id or "", name=name, arguments=arguments)
        case role:
            yield ListedMessage(id="msg", role=role, content=[InputText(text) for text in texts])


def page_of(items: Sequence[ListedItem], query: Mapping[str, str]) -> ItemList:
    """The page that a query asks for. Raises ApiError 400 naming the parameter."""
    order, limit, after = query.get("order", "desc"), query.get("limit", str(USUAL_ITEMS)), query.get("after")
    if order not in ("asc", "desc"):
        raise bad_request("'order' must be asc or desc.", "order")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= MOST_ITEMS:
        raise bad_request(f"'limit' must be a number from 1 to {MOST_ITEMS}.", "limit")
    ordered = list(items) if order == "asc" else list(reversed(items))
    ids = [item.id for item in ordered]
    if after is not None and after not in ids:
        raise bad_request(f"'after' names {after[:80]!r}, which is no item of this response.", "after")
    begin = 0 if after is None else ids.index(after) + 1
    page = ordered[begin : begin + int(limit)]
    return ItemList(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=begin + len(page) < len(ordered),
    )
