"""A response: numbered events whose last one has all of it, and the same where it is not streamed."""

from typing import Any

import msgspec
import pytest

from livescale.services.gateway.envelope import CompletionTokensDetails, Envelope, PromptTokensDetails, Usage
from livescale.services.gateway.errors import ErrorDetail
from livescale.services.gateway.output import StopReason, TextPiece, WholeChoice
from livescale.services.gateway.responses_request import ResponsesRequest
from livescale.services.gateway.responses_shape import ResponsesShape
from livescale.services.gateway.tool_calls.message import CallDelta

ENVELOPE = Envelope("resp-1", 1_700_000_000, "tiny", token_ids=False, usage_follows=True)
USAGE = Usage(5, 3, 8, PromptTokensDetails(2), CompletionTokensDetails(1))
BODY = msgspec.convert({"input": "a", "metadata": {"k": "v"}, "max_output_tokens": 9}, ResponsesRequest)


def sent(objects: list[msgspec.Struct]) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = [msgspec.json.decode(msgspec.json.encode(one)) for one in objects]
    return read


def pieces(ended: StopReason) -> list[TextPiece]:
    return [
        TextPiece("", (), reasoning="Hm."),
        TextPiece("Ye", ()),
        TextPiece("s.", ()),
        TextPiece("", (), calls=(CallDelta(0, "call_0", "f", '{"a"'),)),
        TextPiece("", (), ended, calls=(CallDelta(0, None, None, ": 1}"),)),
    ]


def streamed(ended: StopReason) -> list[dict[str, Any]]:
    shape = ResponsesShape(BODY)
    events = [
        event
        for place, piece in enumerate(pieces(ended))
        for event in shape.chunks(ENVELOPE, 0, piece, None if place else [1])
    ]
    return sent([*events, *shape.ending(ENVELOPE, USAGE)])


@pytest.mark.parametrize(("ended", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_the_last_event_has_the_response_as_it_is_without_a_stream(ended: StopReason, status: str) -> None:
    events, choice = streamed(ended), WholeChoice([1])
    for piece in pieces(ended):
        choice.add(piece)
    [whole] = sent([ResponsesShape(BODY).whole(ENVELOPE, [choice], USAGE)])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [events[0]["type"], events[1]["type"]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == f"response.{status}"
    assert events[-1]["response"] == whole
    assert (whole["status"], whole["metadata"], whole["max_output_tokens"]) == (status, {"k": "v"}, 9)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert (whole["incomplete_details"] is None) == (ended == "stop")


def test_usage_says_what_was_cached_and_what_was_reasoning() -> None:
    usage = streamed("stop")[-1]["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (5, 3, 8)
    assert usage["input_tokens_details"] == {"cached_tokens": 2}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 1}


def test_a_stream_that_fails_ends_with_the_error_under_the_next_number() -> None:
    shape = ResponsesShape(BODY)
    begun = shape.chunks(ENVELOPE, 0, TextPiece("Ye", ()), [1])
    [failed] = sent([shape.failed(ErrorDetail("Why.", "server_error"))])
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", len(begun))
    assert (failed["response"]["status"], failed["response"]["error"]["message"]) == ("failed", "Why.")
