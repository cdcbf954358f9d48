"""What clients see of a request that is held: comments in a stream, errors, and nothing that they must know."""

import asyncio

import msgspec
import pytest
from starlette.types import Message

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.responses import EventStreamResponse, Wait, Write, error_event
from tests.gateway.conftest import ServedGateway, eventually

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 3, "return_token_ids": True}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.gateway.request_stream.SILENCE_SECONDS", 0.05)
    monkeypatch.setattr("livescale.services.gateway.responses.COMMENT_SECONDS", 0.08)


async def test_a_held_stream_begins_with_comments_and_then_has_its_tokens(served: ServedGateway) -> None:
    released = served.cluster.hang_before(0)
    async with served.http.post(f"{served.url}/v1/completions", json={**ASK, "stream": True}) as answer:
        assert answer.status == 200
        for _ in range(2):
            assert await answer.content.readline() == b": waiting\n"
            assert await answer.content.readline() == b"\n"
        released.set_result(None)
        rest = (await answer.content.read()).decode()
    events = [line for line in rest.splitlines() if line.startswith("data: ")]
    assert len(events) == 4
    assert events[-1] == "data: [DONE]"


async def test_the_official_client_does_not_see_comments(served: ServedGateway) -> None:
    released = served.cluster.hang_before(0)
    asyncio.get_running_loop().call_later(0.2, released.set_result, None)
    stream = await served.client.completions.create(model="tiny", prompt="abc", max_tokens=3, stream=True)
    assert len([chunk async for chunk in stream]) == 3


async def test_a_pause_within_a_stream_is_bridged_by_comments(served: ServedGateway) -> None:
    released = served.cluster.hang_before(2)
    async with served.http.post(f"{served.url}/v1/completions", json={**ASK, "stream": True}) as answer:
        lines = [await answer.content.readline() for _ in range(5)]
        assert lines[-1] == b": waiting\n"
        released.set_result(None)
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_deadline_after_the_first_tokens_is_an_error_in_the_stream(served: ServedGateway) -> None:
    served.cluster.hang_before(2)
    async with served.http.post(f"{served.url}/v1/completions", json={**ASK, "stream": True, "timeout": 1.0}) as answer:
        text = await answer.text()
    assert text.count("data: ") == 3
    assert '"code":"timeout"' in text
    assert "[DONE]" not in text


async def test_a_held_request_without_a_stream_just_waits(served: ServedGateway) -> None:
    released = served.cluster.hang_before(0)
    asyncio.get_running_loop().call_later(0.2, released.set_result, None)
    status, body = await served.post("/v1/completions", ASK)
    assert (status, body["choices"][0]["token_ids"]) == (200, [65, 66, 67])


async def test_a_deadline_while_it_is_held_is_an_error_in_the_stream_and_a_504_without_one(
    served: ServedGateway,
) -> None:
    served.cluster.hang_before(0)
    ask = {**ASK, "timeout": 1.0}
    async with served.http.post(f"{served.url}/v1/completions", json={**ask, "stream": True}) as answer:
        assert answer.status == 200
        text = await answer.text()
    assert text.startswith(": waiting\n\n")
    assert '"code":"timeout"' in text
    assert "[DONE]" not in text
    status, body = await served.post("/v1/completions", ask)
    assert (status, body["error"]["code"]) == (504, "timeout")
    await eventually(lambda: len(served.cluster.cancelled) == 2)


async def test_a_client_that_leaves_while_it_is_held_cancels_its_request(served: ServedGateway) -> None:
    served.cluster.hang_before(0)
    async with served.http.post(f"{served.url}/v1/completions", json={**ASK, "stream": True}) as answer:
        assert await answer.content.readline() == b": waiting\n"
    await eventually(lambda: len(served.cluster.cancelled) == 1)


def test_a_stream_fails_with_an_event_that_its_client_understands() -> None:
    error = ApiError(408, "Too slow.", type="timeout_error", code="timeout")
    plain = error_event(error, "/v1/chat/completions")
    assert plain.startswith(b'data: {"error":{"message":"Too slow."')
    assert plain.endswith(b"}\n\n")
    assert error_event(error, "/v1/messages") == (
        b'event: error\ndata: {"type":"error","error":{"type":"timeout_error","message":"Too slow."}}\n\n'
    )


class Event(msgspec.Struct):
    number: int


async def test_what_is_around_an_endpoint_hears_of_an_answers_begin_and_end_alone() -> None:
    heard = list[tuple[str, Message]]()

    async def around(message: Message) -> None:
        heard.append(("around", message))

    async def server(message: Message) -> None:
        heard.append(("server", message))

    async def receive() -> Message:
        never: Message = await asyncio.get_running_loop().create_future()
        return never

    async def produce(write: Write, wait: Wait) -> None:
        await write(Event(1))
        await write(Event(2))

    await EventStreamResponse(produce)({"state": {"send_event": server}}, receive, around)
    assert [(whom, message.get("body")) for whom, message in heard] == [
        ("around", None),
        ("server", b'data: {"number":1}\n\n'),
        ("server", b'data: {"number":2}\n\n'),
        ("around", b"data: [DONE]\n\n"),
    ]
