"""A response: numbered events whose last one has all of it, and the same where it is not streamed."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.gateway.envelope import CompletionTokensDetails, Envelope, PromptTokensDetails, Usage
from livescale.services.gateway.errors import ErrorDetail
from livescale.services.gateway.logprobs import TokenNames
from livescale.services.gateway.output import StopReason, TextPiece, WholeChoice
from livescale.services.gateway.responses_request import ResponsesRequest
from livescale.services.gateway.responses_shape import Items, ResponsesShape, Told
from livescale.services.gateway.tool_calls.message import CallDelta
from livescale.shared.messages.requests import TokenLogprobs

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


WITH_LOGPROBS = replace(ENVELOPE, names=TokenNames(chr))
PIECES = st.lists(
    st.one_of(
        st.builds(lambda text: TextPiece(text, ()), st.text("ab", max_size=2)),
        st.builds(lambda text: TextPiece("", (), reasoning=text), st.text("ab", max_size=2)),
        st.builds(lambda more: TextPiece("", (), calls=(CallDelta(0, None, None, more),)), st.text("12", max_size=2)),
        st.just(TextPiece("", (), calls=(CallDelta(0, "call", "f", ""),))),
    ),
    max_size=8,
)


def told(pieces: list[TextPiece], envelope: Envelope = ENVELOPE) -> tuple[Items, list[Told]]:
    items = Items("resp-1")
    return items, [event for piece in pieces for event in items.add(piece, envelope)]


def said(item: Any) -> str:
    """All that an item says."""
    return item.arguments if hasattr(item, "arguments") else "".join(part.text for part in item.content)


def only_begun_calls(pieces: list[TextPiece]) -> list[TextPiece]:
    """The pieces without arguments of a call that is not the last thing that was begun."""
    kept, calls = list[TextPiece](), False
    for piece in pieces:
        if piece.calls and piece.calls[0].id is None and not calls:
            continue
        if piece.text or piece.reasoning or piece.calls:
            calls = bool(piece.calls)
        kept.append(piece)
    return kept


@given(PIECES.map(only_begun_calls))
def test_what_is_told_of_an_item_adds_up_to_it(pieces: list[TextPiece]) -> None:
    items, events = told([*pieces, TextPiece("", (), "stop")])
    added: list[str] = []
    texts: dict[str, str] = {}
    for event in events:
        match event.kind:
            case "output_item.added":
                assert event.fields["output_index"] == len(added)
                added.append(event.fields["item"].id)
                texts[added[-1]] = ""
            case "output_item.done":
                item = event.fields["item"]
                assert item.id == added[-1]
                assert (said(item), item.status) == (texts[item.id], "completed")
            case _:
                assert (event.fields["item_id"], event.fields["output_index"]) == (added[-1], len(added) - 1)
                texts[added[-1]] += event.fields.get("delta", "")
    assert [item.id for item in items.done] == added
    assert len(set(added)) == len(added)
    assert "".join(texts.values()) == "".join(
        piece.reasoning + piece.text + "".join(call.arguments for call in piece.calls) for piece in pieces
    )


def test_an_answer_that_says_nothing_at_all_is_an_empty_message() -> None:
    for said_before, kinds in (
        (TextPiece("", ()), ["message"]),
        (TextPiece("", (), reasoning="Hm"), ["reasoning"]),
        (TextPiece("", (), calls=(CallDelta(0, "call", "f", "{}"),)), ["function_call"]),
    ):
        items, _ = told([said_before, TextPiece("", (), "stop")])
        assert [msgspec.to_builtins(item)["type"] for item in items.done] == kinds


def test_what_tokens_were_not_enough_for_is_incomplete() -> None:
    items, _ = told([TextPiece("", (), reasoning="Hm"), TextPiece("Ye", ()), TextPiece("s", (), "length")])
    assert items.cut
    assert [item.status for item in items.done] == ["completed", "incomplete"]


def test_a_token_whose_text_is_held_back_is_told_with_the_message_and_none_of_its_thoughts() -> None:
    def token(id: int, text: str = "", reasoning: str = "") -> TextPiece:
        return TextPiece(text, (id,), logprobs=(TokenLogprobs(-1.0),), reasoning=reasoning)

    items, events = told(
        [token(104, reasoning="h"), token(60), token(97), token(98, "ab"), token(99, "c"), TextPiece("", (), "stop")],
        WITH_LOGPROBS,
    )
    deltas = [event.fields for event in events if event.kind == "output_text.delta"]
    assert [[one.token for one in fields["logprobs"]] for fields in deltas] == [["b"], ["c"]]
    [part] = msgspec.to_builtins(items.done[-1])["content"]
    assert [one["token"] for one in part["logprobs"]] == ["b", "c"]

    _, events = told([token(97), token(98, "ab"), TextPiece("", (), "stop")], WITH_LOGPROBS)
    deltas = [event.fields for event in events if event.kind == "output_text.delta"]
    assert [[one.token for one in fields["logprobs"]] for fields in deltas] == [["a", "b"]]


def test_tokens_whose_text_never_came_are_told_with_the_empty_message() -> None:
    items, _ = told([TextPiece("", (97,), logprobs=(TokenLogprobs(-1.0),)), TextPiece("", (), "stop")], WITH_LOGPROBS)
    [part] = msgspec.to_builtins(items.done[-1])["content"]
    assert (part["text"], [one["token"] for one in part["logprobs"]]) == ("", ["a"])
