"""OpenAI's client is content with responses: whole, streamed, stored, continued and cancelled."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.gateway.conftest import ServedGateway, eventually, serve_gateway
from tests.gateway.test_tools import ANOTHER, ARGUMENTS, CALL, says, writes

FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
IMAGE = [{"type": "input_image", "image_url": "x"}]
TEXT = "Shaפjo says: ñandú…"


async def test_a_response_is_whole_and_can_be_retrieved(served: ServedGateway) -> None:
    tokens = served.says(TEXT)
    made = await served.client.responses.create(
        model="tiny", input="hello", instructions="Be brief.", max_output_tokens=len(tokens), metadata={"a": "b"}
    )
    assert (made.output_text, made.status, made.metadata) == (TEXT, "incomplete", {"a": "b"})
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.usage is not None
    assert (made.usage.output_tokens, made.usage.input_tokens_details.cached_tokens) == (len(tokens), 2)
    said = served.tokenizer.decode(served.cluster.submitted[0].prompt)
    assert said.index("Be brief.") < said.index("hello")
    assert await served.client.responses.retrieve(made.id) == made


async def test_a_stream_has_typed_events_in_order(served: ServedGateway) -> None:
    tokens = served.says(TEXT)
    stream = await served.client.responses.create(
        model="tiny", input=[{"role": "user", "content": "hello"}], max_output_tokens=len(tokens), stream=True
    )
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    last = events[-1]
    assert last.type == "response.incomplete"
    assert await served.client.responses.retrieve(last.response.id) == last.response


async def test_the_wire_names_each_event_and_has_no_end_of_its_own(served: ServedGateway) -> None:
    asked = {"model": "tiny", "input": "hello", "max_output_tokens": 1, "stream": True}
    async with served.http.post(f"{served.url}/v1/responses", json=asked) as answer:
        text = await answer.text()
    assert text.startswith('event: response.created\ndata: {"type":"response.created","sequence_number":0')
    assert "[DONE]" not in text


async def test_a_conversation_goes_on_where_an_earlier_response_ended(served: ServedGateway) -> None:
    served.says("first")
    ask = served.client.responses.create
    first = await ask(model="tiny", input="one", instructions="Only once.", max_output_tokens=2)
    second = await ask(model="tiny", input="two", previous_response_id=first.id, max_output_tokens=2)
    assert second.previous_response_id == first.id
    said = served.tokenizer.decode(served.cluster.submitted[1].prompt)
    assert said.index("one") < said.index(first.output_text) < said.index("two")
    assert "Only once." not in said
    third = await ask(model="tiny", input="three", previous_response_id=second.id, max_output_tokens=2)
    said = served.tokenizer.decode(served.cluster.submitted[2].prompt)
    assert [said.count(word) for word in ("one", "two", "three")] == [1, 1, 1]
    assert third.id != second.id


async def test_a_response_that_is_not_to_be_stored_is_not(served: ServedGateway) -> None:
    made = await served.client.responses.create(model="tiny", input="hello", store=False, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        await served.client.responses.retrieve(made.id)


async def test_where_nothing_is_kept_responses_say_so(checkpoint: Path) -> None:
    async with serve_gateway(checkpoint, responses_seconds=0) as served:
        status, made = await served.post("/v1/responses", {"model": "tiny", "input": "hello", "max_output_tokens": 1})
        assert (status, made["store"]) == (200, False)
        asked = {"model": "tiny", "input": "hello", "background": True}
        status, refused = await served.post("/v1/responses", asked)
        assert (status, refused["error"]["param"]) == (400, "background")


async def background(served: ServedGateway) -> Response:
    return await served.client.responses.create(model="tiny", input="hello", background=True, max_output_tokens=3)


async def status_of(served: ServedGateway, id: str, wanted: str) -> Response:
    async with asyncio.timeout(60):
        while True:
            found = await served.client.responses.retrieve(id)
            if found.status == wanted:
                return found
            await asyncio.sleep(0.01)


async def test_a_response_in_the_background_is_there_later(served: ServedGateway) -> None:
    going = served.cluster.hang_before(1)
    begun = await background(served)
    assert (begun.status, begun.output) == ("in_progress", [])
    await eventually(lambda: len(served.cluster.submitted) == 1)
    assert (await served.client.responses.retrieve(begun.id)).status == "in_progress"
    going.set_result(None)
    found = await status_of(served, begun.id, "incomplete")
    assert found.output_text == served.tokenizer.decode([65, 66, 67])


async def test_a_response_in_the_background_is_cancelled(served: ServedGateway) -> None:
    served.cluster.hang_before(1)
    begun = await background(served)
    await eventually(lambda: len(served.cluster.submitted) == 1)
    assert (await served.client.responses.cancel(begun.id)).status == "cancelled"
    await eventually(lambda: len(served.cluster.cancelled) == 1)
    assert (await served.client.responses.cancel(begun.id)).status == "cancelled"
    whole = await served.client.responses.create(model="tiny", input="hello", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="background"):
        await served.client.responses.cancel(whole.id)


async def test_what_fails_on_its_way_ends_with_a_failed_response(served: ServedGateway) -> None:
    served.cluster.finish = "error"
    stream = await served.client.responses.create(model="tiny", input="hello", max_output_tokens=3, stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "kernel exploded" in last.response.error.message
    begun = await background(served)
    assert (await status_of(served, begun.id, "failed")).error is not None


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"input": "one " * 400}, "input"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"enum": []}}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"background": True, "stream": True}, "background"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"other": 1}, "other"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(served: ServedGateway, changes: dict[str, Any], param: str) -> None:
    status, answer = await served.post("/v1/responses", {"model": "tiny", "input": "hello", **changes})
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_bug_in_the_background_is_one_responses_failure(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("livescale.services.gateway.completion_response.CompletionResponse.collect", break_down)
    begun = await background(served)
    failed = await status_of(served, begun.id, "failed")
    assert failed.error is not None
    assert (await served.get("/live"))[0] == 200


THOUGHT = "<think>\nHm.\n</think>\n\n"


@pytest.mark.parametrize("said", [THOUGHT + CALL + ANOTHER, CALL.removeprefix("Yes."), THOUGHT + "Yes."])
async def test_reasoning_and_calls_are_items_streamed_and_whole(served: ServedGateway, said: str) -> None:
    model = writes(served, "hermes", "think")
    says(served, said)
    asked: Any = {"model": model, "input": "Is it warm?", "tools": [FUNCTION], "extra_headers": {"x-request-id": "a"}}
    whole = await served.client.responses.create(**asked)
    async with served.client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        streamed = await stream.get_final_response()
    kinds = [item.type for item in whole.output]
    assert kinds == [kind for kind, mark in PARTS_OF.items() for _ in range(said.count(mark))]
    assert [part_of(item) for item in streamed.output] == [part_of(item) for item in whole.output]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert added == [item.id for item in done]
    assert len(set(added)) == len(kinds)
    calls = [item for item in done if item.type == "function_call"]
    for call in calls:
        pieces = [
            event.delta
            for event in events
            if event.type == "response.function_call_arguments.delta" and event.item_id == call.id
        ]
        assert "".join(pieces) == call.arguments
    assert (whole.tools[0].type, whole.tool_choice, whole.status) == ("function", "auto", "completed")


PARTS_OF = {"reasoning": "<think>", "message": "Yes.", "function_call": "<tool_call>"}


def part_of(item: Any) -> dict[str, Any]:
    told: dict[str, Any] = item.model_dump(exclude={"id", "parsed_arguments"})
    for part in told.get("content") or []:
        part.pop("parsed", None)
    return told


async def test_a_call_goes_on_with_what_it_answered(served: ServedGateway) -> None:
    model = writes(served, "hermes", "think")
    says(served, THOUGHT + CALL)
    asked: Any = {"model": model, "tools": [FUNCTION]}
    first = await served.client.responses.create(**asked, input="Is it warm?")
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "It is cold."}
    await served.client.responses.create(**asked, input=[result], previous_response_id=first.id)
    given: Any = [{"role": "user", "content": "Is it warm?"}, *(item.model_dump() for item in first.output), result]
    await served.client.responses.create(**asked, input=given, store=False)
    kept, whole = (served.tokenizer.decode(one.prompt) for one in served.cluster.submitted[-2:])
    assert kept == whole
    assert kept.index("Is it warm?") < kept.index("Yes.") < kept.index("It is cold.")


async def test_a_response_can_be_made_to_call(served: ServedGateway) -> None:
    says(served, ARGUMENTS)
    choice: Any = {"type": "function", "name": "weather"}
    tools: Any = [FUNCTION]
    made = await served.client.responses.create(model="tiny", input="a", tools=tools, tool_choice=choice)
    [call] = made.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("weather", ARGUMENTS)
