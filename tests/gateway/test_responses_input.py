"""What a response was made of: its client lists it as OpenAI's does, and counts it beforehand."""

from typing import Any

import openai
import pytest

from livescale.services.gateway.conversation import CalledFunction, ChatMessage, TextPart, ToolCall
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.responses_input import input_items, page_of
from tests.gateway.conftest import ServedGateway

CALL = ToolCall(function=CalledFunction("weather", {"city": "Bonn"}), id="call_1")
CONVERSATION = [
    ChatMessage(role="user", content=[TextPart(type="text", text="Is it"), TextPart(type="text", text="warm?")]),
    ChatMessage(role="assistant", reasoning_content="Hm.", content="I ask.", tool_calls=[CALL]),
    ChatMessage(role="tool", content="22 degrees", tool_call_id="call_1"),
]
ITEMS = input_items("resp-a", CONVERSATION)


def test_each_message_is_the_items_that_it_came_in() -> None:
    assert [item.id for item in ITEMS] == ["msg-a-in-0", "rs-a-in-1", "msg-a-in-2", "fc-a-in-3", "fco-a-in-4"]
    listed: Any = ITEMS
    assert [part.text for part in listed[0].content] == ["Is it", "warm?"]
    assert [part.text for item in listed[1:3] for part in item.content] == ["Hm.", "I ask."]
    assert (listed[3].name, listed[3].arguments, listed[3].call_id) == ("weather", '{"city":"Bonn"}', "call_1")
    assert (listed[4].output, listed[4].call_id) == ("22 degrees", "call_1")


def test_pages_follow_each_other_without_a_gap() -> None:
    newest = list(reversed(ITEMS))
    first = page_of(ITEMS, {"limit": "2"})
    assert (first.data, first.has_more) == (newest[:2], True)
    assert first.last_id is not None
    second = page_of(ITEMS, {"limit": "3", "after": first.last_id})
    assert (second.data, second.has_more) == (newest[2:], False)
    assert page_of(ITEMS, {"order": "asc"}).data == ITEMS
    assert (page_of([], {}).first_id, page_of([], {}).has_more) == (None, False)


@pytest.mark.parametrize(("param", "value"), [("limit", "0"), ("limit", "x"), ("order", "up"), ("after", "msg-b-in-0")])
def test_a_page_that_is_not_there_is_refused_by_name(param: str, value: str) -> None:
    with pytest.raises(ApiError) as refused:
        page_of(ITEMS, {param: value})
    assert (refused.value.status, refused.value.detail.param) == (400, param)


async def test_openais_client_lists_the_whole_conversation(served: ServedGateway) -> None:
    responses = served.client.responses
    first = await responses.create(model="tiny", input="one", max_output_tokens=2)
    more: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "two"}]
    second = await responses.create(model="tiny", input=more, previous_response_id=first.id, max_output_tokens=1)
    pages = responses.input_items.list(second.id, order="asc", limit=1)
    items: list[Any] = [item async for item in pages]
    assert [item.role for item in items] == ["user", "assistant", "developer", "user"]
    assert [item.content[0].text for item in items] == ["one", first.output_text, "Be brief.", "two"]
    newest = [item async for item in responses.input_items.list(second.id)]
    assert [item.id for item in newest] == [item.id for item in reversed(items)]
    with pytest.raises(openai.NotFoundError):
        await responses.input_items.list("resp-none")


async def test_a_cancelled_response_keeps_its_input(served: ServedGateway) -> None:
    served.cluster.hang_before(1)
    begun = await served.client.responses.create(model="tiny", input="hello", background=True)
    await served.client.responses.cancel(begun.id)
    [item] = [one async for one in served.client.responses.input_items.list(begun.id)]
    assert item.type == "message"


async def test_an_input_has_as_many_tokens_as_its_response_reads(served: ServedGateway) -> None:
    responses = served.client.responses
    first = await responses.create(model="tiny", input="one", instructions="Be brief.", max_output_tokens=1)
    counted = await responses.input_tokens.count(model="tiny", input="one", instructions="Be brief.")
    assert first.usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", first.usage.input_tokens)
    later = await responses.input_tokens.count(model="tiny", input="two", previous_response_id=first.id)
    assert later.input_tokens > counted.input_tokens
    with pytest.raises(openai.BadRequestError) as refused:
        await responses.input_tokens.count(model="tiny", input="a", tool_choice="required")
    assert refused.value.param == "tool_choice"


async def test_events_of_the_past_are_refused_by_name(served: ServedGateway) -> None:
    made = await served.client.responses.create(model="tiny", input="one", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError) as refused:
        await served.client.responses.retrieve(made.id, stream=True)
    assert refused.value.param == "stream"
