"""Prompts that come before the answer: their text, their tokens and their log-probabilities."""

from collections.abc import Sequence

import pytest

from livescale.services.gateway.echo import Echo
from livescale.services.gateway.output import StopReason, TextPiece
from livescale.shared.messages.requests import TokenLogprobs

SMILE = "🙂".encode()


def decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def test_the_first_piece_alone_has_the_prompt_before_it() -> None:
    echo = Echo.of(decode, b"ab", None, alone=False)
    assert echo.first(TextPiece("c", (99,))).text == "abc"
    assert echo.later(TextPiece("d", (100,))) == TextPiece("d", (100,))


def test_a_character_that_the_prompt_begins_comes_with_the_answer_or_as_it_is() -> None:
    prompt = [*b"a", *SMILE[:2]]
    assert Echo.of(decode, prompt, None, alone=False).text == "a"
    assert Echo.of(decode, prompt, None, alone=True).text == decode(prompt)


def test_log_probabilities_begin_with_the_prompts_of_whose_first_token_nothing_is_known() -> None:
    told = TokenLogprobs(-1.0, [(1, -0.5), (2, -0.7), (3, -0.9)])
    generated = TokenLogprobs(-2.0)
    piece = TextPiece("c", (99,), logprobs=(generated,), prompt_logprobs=(told,))
    first = Echo.of(decode, b"ab", 2, alone=False).first(piece)
    assert first.echoed == tuple(b"ab")
    assert first.logprobs == (None, TokenLogprobs(-1.0, [(1, -0.5), (2, -0.7)]), generated)
    assert len(first.logprobs) == len(first.echoed) + len(first.token_ids)


@pytest.mark.parametrize(("ended", "told"), [(None, None), ("stop", "length"), ("length", "length")])
def test_nothing_follows_a_prompt_that_is_wanted_alone(ended: StopReason | None, told: StopReason | None) -> None:
    echo = Echo.of(decode, b"ab", None, alone=True)
    first = echo.first(TextPiece("c", (99,), ended, "c"))
    assert (first.text, first.token_ids, first.finish_reason, first.stop_reason) == ("ab", (), told, None)
