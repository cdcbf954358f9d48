"""The message of a chat: what the client gets in pieces adds up to what it gets whole."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.assistant_message import delta_of, message_of
from livescale.services.gateway.output import TextPiece, WholeChoice
from livescale.services.gateway.tool_calls.message import CallDelta, Calls, Delta

CALLS = st.lists(st.tuples(st.sampled_from(["f", "g"]), st.lists(st.text(max_size=3), max_size=3)), max_size=3)


def sent(answer: msgspec.Struct) -> dict[str, Any]:
    """The object as its client reads it."""
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return read


def pieces_of(thoughts: list[str], texts: list[str], calls: list[tuple[str, list[str]]]) -> list[TextPiece]:
    """An answer piece by piece: first thoughts, then text, then calls."""
    said = [TextPiece("", (), reasoning=thought) for thought in thoughts]
    said += [TextPiece(text, ()) for text in texts]
    counted = Calls({}, lambda index: f"call_{index}")
    for name, arguments in calls:
        delta = Delta()
        counted.open(delta, name)
        said.append(TextPiece("", (), calls=tuple(delta.calls)))
        for text in arguments:
            delta = Delta()
            counted.add(delta, text)
            said.append(TextPiece("", (), calls=tuple(delta.calls)))
    return said


@given(st.lists(st.text(max_size=3), max_size=3), st.lists(st.text(max_size=3), max_size=3), CALLS)
def test_a_client_that_adds_up_the_pieces_has_the_whole_message(
    thoughts: list[str], texts: list[str], calls: list[tuple[str, list[str]]]
) -> None:
    choice = WholeChoice([1])
    content, reasoning, called = "", "", dict[int, dict[str, Any]]()
    for piece in pieces_of(thoughts, texts, calls):
        choice.add(piece)
        delta = sent(delta_of(piece))
        content += delta.get("content", "")
        reasoning += delta.get("reasoning", "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                called[call["index"]] = {"id": call["id"], "type": call["type"], "function": call["function"]}
            else:
                called[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    whole = sent(message_of(choice))
    assert whole["role"] == "assistant"
    assert (whole["content"] or "", whole["reasoning"] or "") == (content, reasoning)
    assert whole.get("tool_calls", []) == [called[index] for index in sorted(called)]


def test_content_is_null_only_where_something_else_is_said() -> None:
    call = CallDelta(0, "call_0", "f", "{}")
    for piece, content in (
        (TextPiece("", ()), ""),
        (TextPiece("", (), reasoning="Hm"), None),
        (TextPiece("", (), calls=(call,)), None),
        (TextPiece("Yes", (), reasoning="Hm", calls=(call,)), "Yes"),
    ):
        choice = WholeChoice([1])
        choice.add(piece)
        assert sent(message_of(choice))["content"] == content


def test_a_message_without_calls_and_thoughts_has_null_for_what_it_lacks_and_a_piece_leaves_it_out() -> None:
    choice = WholeChoice([1])
    choice.add(TextPiece("Yes", ()))
    message = sent(message_of(choice))
    assert {name: value for name, value in message.items() if value is not None} == {
        "role": "assistant",
        "content": "Yes",
    }
    assert message.keys() >= {"refusal", "annotations", "audio", "function_call", "reasoning"}
    assert "tool_calls" not in message  # as vLLM has it
    assert sent(delta_of(TextPiece("Yes", ()))) == {"content": "Yes"}
