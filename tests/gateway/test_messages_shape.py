"""Anthropic's message: its stream opens and closes one block after the other, and adds up to the whole."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.envelope import Envelope, PromptTokensDetails, Usage
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.messages_shape import MessagesShape, MessageStop, message_error, stop_of
from livescale.services.gateway.output import StopReason, TextPiece, WholeChoice
from livescale.services.gateway.tool_calls.message import CallDelta

ENVELOPE = Envelope("msg-1", 1_700_000_000, "tiny", token_ids=False, usage_follows=True)
USAGE = Usage(5, 3, 8, PromptTokensDetails(2))
PROMPT = [1, 2, 3, 4, 5]
SAID = st.lists(
    st.one_of(
        st.builds(lambda text: TextPiece(text, ()), st.text("ab", max_size=2)),
        st.builds(lambda text: TextPiece("", (), reasoning=text), st.text("ab", max_size=2)),
    ),
    max_size=6,
)


def sent(objects: list[msgspec.Struct]) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = [msgspec.json.decode(msgspec.json.encode(one)) for one in objects]
    return read


def call_of(index: int) -> list[TextPiece]:
    """A call of a tool in three pieces."""
    begun = CallDelta(index, f"call_{index}", "f", '{"a"')
    deltas = begun, CallDelta(index, None, None, ": 1"), CallDelta(index, None, None, "}")
    return [TextPiece("", (), calls=(delta,)) for delta in deltas]


def stream(pieces: list[TextPiece]) -> list[dict[str, Any]]:
    """The events of an answer of these pieces."""
    shape = MessagesShape()
    events = [
        event
        for place, piece in enumerate(pieces)
        for event in shape.chunks(ENVELOPE, 0, piece, None if place else PROMPT)
    ]
    return sent([*events, *shape.ending(ENVELOPE, USAGE)])


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message as a client of a stream puts it together, while it checks their order."""
    assert events[0]["type"] == "message_start"
    message: dict[str, Any] = events[0]["message"]
    open_block, texts = None, ""
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert open_block is None
                open_block, texts = event["content_block"], ""
                assert event["index"] == len(message["content"])
            case "content_block_delta":
                assert open_block is not None
                assert event["index"] == len(message["content"])
                texts += next(value for key, value in event["delta"].items() if key != "type")
            case "content_block_stop":
                assert open_block is not None
                field = {"text": "text", "thinking": "thinking", "tool_use": "input"}[open_block["type"]]
                open_block[field] = msgspec.json.decode(texts) if field == "input" else texts
                message["content"].append(open_block)
                open_block = None
            case other:
                raise AssertionError(other)
    assert open_block is None
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


@given(SAID, st.integers(0, 2), st.sampled_from(["stop", "length"]))
def test_a_stream_adds_up_to_the_blocks_that_were_said(said: list[TextPiece], calls: int, ended: StopReason) -> None:
    pieces = [*said, *(piece for index in range(calls) for piece in call_of(index)), TextPiece("", (), ended)]
    message = added_up(stream(pieces))
    blocks = message["content"]
    assert "".join(one["text"] for one in blocks if one["type"] == "text") == "".join(one.text for one in said)
    thoughts = "".join(one["thinking"] for one in blocks if one["type"] == "thinking")
    assert thoughts == "".join(one.reasoning for one in said)
    assert [one["id"] for one in blocks if one["type"] == "tool_use"] == [f"call_{index}" for index in range(calls)]
    assert all(one["type"] != other["type"] for one, other in pairwise(blocks)) or calls > 1


def test_a_whole_message_is_what_its_stream_adds_up_to() -> None:
    pieces = [
        TextPiece("", (), reasoning="H"),
        TextPiece("", (), reasoning="m."),
        TextPiece("Ye", ()),
        TextPiece("s.", ()),
        *call_of(0),
        *call_of(1),
        TextPiece("", (), "stop"),
    ]
    choice = WholeChoice(PROMPT)
    for piece in pieces:
        choice.add(piece)
    [whole] = sent([MessagesShape().whole(ENVELOPE, [choice], USAGE)])
    assert added_up(stream(pieces)) == whole
    assert whole["usage"] == {
        "input_tokens": 3,  # without those from the cache
        "output_tokens": 3,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 0,
    }


def test_a_whole_message_has_no_call_whose_arguments_were_cut_off() -> None:
    choice = WholeChoice(PROMPT)
    for piece in (*call_of(0), *call_of(1)[:-1], TextPiece("", (), "length")):
        choice.add(piece)
    [whole] = sent([MessagesShape().whole(ENVELOPE, [choice], USAGE)])
    assert ([one["id"] for one in whole["content"]], whole["stop_reason"]) == (["call_0"], "max_tokens")


@pytest.mark.parametrize(
    ("reason", "stop", "calls", "told"),
    [
        ("stop", None, False, ("end_turn", None)),
        ("stop", None, True, ("tool_use", None)),
        ("tool_calls", None, True, ("tool_use", None)),
        ("stop", "END", False, ("stop_sequence", "END")),
        ("stop", 7, False, ("end_turn", None)),
        ("length", None, True, ("max_tokens", None)),
        ("repetition", None, False, ("end_turn", None)),
    ],
)
def test_a_message_says_why_it_ended(
    reason: StopReason, stop: int | str | None, calls: bool, told: tuple[MessageStop, str | None]
) -> None:
    assert stop_of(reason, stop, calls=calls) == told


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (429, "rate_limit_error"), (422, "invalid_request_error"), (500, "api_error")],
)
def test_an_error_has_the_type_that_anthropics_clients_know(status: int, kind: str) -> None:
    [body] = sent([message_error(ApiError(status, "Why."))])
    assert body == {"type": "error", "error": {"type": kind, "message": "Why."}}
