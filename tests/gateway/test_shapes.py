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


@pytest.mark.parametrize("shape", SHAPES)
def test_usage_so_far_is_in_every_chunk_where_it_was_asked_for(shape: ResponseShape) -> None:
    asked = envelope(usage_follows=True).with_usage(USAGE)
    for chunk in sent(shape.chunks(asked, 0, TextPiece("a", (7,)), [1])):
        assert chunk["usage"]["total_tokens"] == 5
