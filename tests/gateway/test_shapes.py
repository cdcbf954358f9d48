"""How pieces of text look to clients of either endpoint, streamed and whole."""

from typing import Any

import msgspec
import pytest

from livescale.services.gateway.envelope import Envelope, PromptTokensDetails, Usage
from livescale.services.gateway.output import TextPiece, WholeChoice
from livescale.services.gateway.shapes import ChatShape, CompletionShape, ResponseShape

USAGE = Usage(2, 3, 5, PromptTokensDetails(1))
SHAPES = [CompletionShape(), ChatShape()]


def envelope(*, token_ids: bool = False, usage_follows: bool = False) -> Envelope:
    return Envelope("id-1", 1_700_000_000, "tiny", token_ids, usage_follows)


def sent(chunks: list[msgspec.Struct]) -> list[Any]:
    """Return objects as clients get them, decoded from JSON."""
    return [msgspec.json.decode(msgspec.json.encode(chunk)) for chunk in chunks]


@pytest.mark.parametrize("shape", SHAPES)
def test_text_that_is_held_back_is_no_event_unless_token_ids_are_asked_for(shape: ResponseShape) -> None:
    held_back = TextPiece("", (7,))
    assert shape.chunks(envelope(), 0, held_back, None) == []
    [chunk] = sent(shape.chunks(envelope(token_ids=True), 0, held_back, None))
    assert chunk["choices"][0]["token_ids"] == [7]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_last_piece_is_an_event_though_it_has_no_text(shape: ResponseShape) -> None:
    [chunk] = sent(shape.chunks(envelope(), 0, TextPiece("", (), "stop"), None))
    assert chunk["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("shape", SHAPES)
def test_usage_is_null_until_the_last_chunk_where_it_was_asked_for_and_absent_otherwise(shape: ResponseShape) -> None:
    piece = TextPiece("a", (7,))
    assert all("usage" not in chunk for chunk in sent(shape.chunks(envelope(), 0, piece, [1])))
    asked = envelope(usage_follows=True)
    assert all(chunk["usage"] is None for chunk in sent(shape.chunks(asked, 0, piece, [1])))
    [last] = sent(shape.ending(asked, USAGE))
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)


def test_a_chat_begins_with_the_role_and_a_completion_with_text() -> None:
    piece = TextPiece("a", (7,))
    opening, first = sent(ChatShape().chunks(envelope(token_ids=True), 0, piece, [1, 2]))
    assert (opening["choices"][0]["delta"], opening["prompt_token_ids"]) == (
        {"role": "assistant", "content": ""},
        [1, 2],
    )
    assert first["choices"][0]["delta"] == {"content": "a"}
    [only] = sent(CompletionShape().chunks(envelope(token_ids=True), 3, piece, [1, 2]))
    assert (only["choices"][0]["index"], only["choices"][0]["prompt_token_ids"]) == (3, [1, 2])


def test_a_whole_answer_is_its_pieces_joined() -> None:
    choice = WholeChoice([1])
    for piece in (TextPiece("a", (7,)), TextPiece("", (8,)), TextPiece("bc", (9,), "stop")):
        choice.add(piece)
    [completion] = sent([CompletionShape().whole(envelope(token_ids=True), [choice], USAGE)])
    [chat] = sent([ChatShape().whole(envelope(token_ids=True), [choice], USAGE)])
    assert completion["choices"][0]["text"] == chat["choices"][0]["message"]["content"] == "abc"
    for answer in (completion, chat):
        assert answer["choices"][0]["token_ids"] == [7, 8, 9]
        assert answer["choices"][0]["finish_reason"] == "stop"


# What clients of OpenAI and vLLM look for in every whole answer, though nobody asked for it.
NULL = ("service_tier", "system_fingerprint")
NULL_OF_CHATS = ("prompt_logprobs", "prompt_token_ids", "prompt_text")
NULL_OF_CHOICES = ("logprobs", "stop_reason", "token_ids")
NULL_OF_COMPLETIONS = ("prompt_logprobs", "prompt_token_ids")
NULL_OF_MESSAGES = ("refusal", "annotations", "audio", "function_call", "reasoning")


def test_what_nobody_asked_for_is_null_in_whole_answers() -> None:
    choice = WholeChoice([1])
    choice.add(TextPiece("a", (7,), "stop"))
    [completion] = sent([CompletionShape().whole(envelope(), [choice], USAGE)])
    [chat] = sent([ChatShape().whole(envelope(), [choice], USAGE)])
    for told, names in (
        (completion, NULL),
        (completion["choices"][0], NULL_OF_CHOICES + NULL_OF_COMPLETIONS),
        (chat, NULL + NULL_OF_CHATS),
        (chat["choices"][0], NULL_OF_CHOICES),
        (chat["choices"][0]["message"], NULL_OF_MESSAGES),
    ):
        assert {name: told[name] for name in names} == dict.fromkeys(names)
    assert "tool_calls" not in chat["choices"][0]["message"]


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_say_what_they_have_and_nothing_else(shape: ResponseShape) -> None:
    for chunk in sent(shape.chunks(envelope(), 0, TextPiece("a", (7,)), [1])):
        assert not {"service_tier", "prompt_token_ids", "prompt_text"} & chunk.keys()
        assert not {"token_ids", "prompt_token_ids", "prompt_logprobs"} & chunk["choices"][0].keys()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_object_says_what_has_made_it(shape: ResponseShape) -> None:
    made, choice = envelope(usage_follows=True).made_by("v-1"), WholeChoice([1])
    choice.add(TextPiece("a", (7,), "stop"))
    told = [*shape.chunks(made, 0, TextPiece("a", (7,)), [1]), *shape.ending(made, USAGE)]
    assert {one["system_fingerprint"] for one in sent([*told, shape.whole(made, [choice], USAGE)])} == {"v-1"}


@pytest.mark.parametrize("shape", SHAPES)
def test_usage_so_far_is_in_every_chunk_where_it_was_asked_for(shape: ResponseShape) -> None:
    asked = envelope(usage_follows=True).with_usage(USAGE)
    for chunk in sent(shape.chunks(asked, 0, TextPiece("a", (7,)), [1])):
        assert chunk["usage"]["total_tokens"] == 5
