"""From tokens to a choice's text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.output import Output, Piece
from livescale.services.gateway.sequence import Fresh


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(id) for id in ids)


def ids(text: str) -> tuple[int, ...]:
    return tuple(ord(char) for char in text)


def test_a_stop_string_cuts_text_and_tokens_where_it_is_complete() -> None:
    output = Output(letters, [], stops=["cd"])
    assert output.feed(Fresh(ids("abc"))) == Piece("ab", ids("abc"))
    assert output.feed(Fresh(ids("defg"))) == Piece("", ids("d"), "stop")


def test_text_held_back_comes_with_the_end() -> None:
    output = Output(letters, [], stops=["cd"])
    assert output.feed(Fresh(ids("abc"))).text == "ab"
    assert output.feed(Fresh((), "length")) == Piece("c", (), "length")


def test_no_stop_string_counts_before_min_tokens() -> None:
    output = Output(letters, [], stops=["b"], min_tokens=3)
    assert output.feed(Fresh(ids("abab"))) == Piece("aba", ids("abab"), "stop")


def test_the_stop_token_is_no_part_of_the_text() -> None:
    output = Output(letters, [], stop_token_ids=[ord("$")])
    assert output.feed(Fresh(ids("ab$"), "stop")) == Piece("ab", ids("ab$"), "stop")
    assert Output(letters, []).feed(Fresh(ids("ab$"), "length")).text == "ab$"


@given(st.text("abc", max_size=20), st.lists(st.integers(1, 4), min_size=1))
def test_frames_of_any_size_give_the_same_answer(text: str, sizes: list[int]) -> None:
    def answer(cuts: list[int]) -> tuple[str, tuple[int, ...], str | None]:
        output, found, rest = Output(letters, [], stops=["bc", "caa"]), list[Piece](), ids(text)
        turn = 0
        while rest:
            size = cuts[turn % len(cuts)]
            found.append(output.feed(Fresh(rest[:size])))
            rest, turn = rest[size:], turn + 1
            if found[-1].finish_reason:
                break
        else:
            found.append(output.feed(Fresh((), "length")))
        tokens = tuple(token for piece in found for token in piece.token_ids)
        return "".join(piece.text for piece in found), tokens, found[-1].finish_reason

    assert answer(sizes) == answer([1])


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_the_reason_is_the_workers(reason: str) -> None:
    assert Output(letters, []).feed(Fresh(ids("a"), reason)).finish_reason == reason  # type: ignore[arg-type]
