"""Answers that repeat themselves end, where their clients ask for that."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.output import TextOutput
from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.repetition import REPEATED, RepetitionDetection, RepetitionOutput, repeats
from tests.gateway.conftest import ServedGateway

TWICE = RepetitionDetection(max_pattern_size=3, min_pattern_size=2, min_count=3)


def test_a_pattern_counts_where_it_comes_often_enough() -> None:
    assert repeats([9, 1, 2, 1, 2, 1, 2], TWICE)
    assert not repeats([9, 1, 2, 1, 2, 1, 3], TWICE)
    assert not repeats([1, 2, 1, 2], TWICE)
    assert repeats([1, 1, 1, 1, 1, 1], TWICE)
    assert not repeats([1, 1, 1, 1, 1], TWICE)
    assert not repeats([1] * 9, RepetitionDetection())


@given(st.lists(st.integers(0, 2), max_size=20), st.integers(1, 4), st.integers(1, 4), st.integers(2, 4))
def test_it_is_the_same_as_comparing_pieces(tokens: list[int], least: int, more: int, count: int) -> None:
    asked = RepetitionDetection(max_pattern_size=least + more, min_pattern_size=least, min_count=count)
    found = any(
        len(tokens) >= size * count and tokens[-size * count :] == tokens[-size:] * count
        for size in range(least, least + more + 1)
    )
    assert repeats(tokens, asked) == found


@pytest.mark.parametrize("at_once", [1, 2, 20])
def test_an_answer_ends_with_the_token_that_repeats_it(at_once: int) -> None:
    tokens = [ord(letter) for letter in "xabababab"]
    plain = TextOutput(lambda ids: "".join(map(chr, ids)), [])
    output = RepetitionOutput(plain, RepetitionDetection(max_pattern_size=4, min_count=3), min_tokens=0)
    text, place = "", 0
    while place < len(tokens):
        piece = output.feed(Fresh(tuple(tokens[place : place + at_once])))
        text, place = text + piece.text, place + at_once
        if piece.finish_reason is not None:
            break
    assert (text, piece.finish_reason, piece.stop_reason) == ("xababab", "repetition", REPEATED)


async def test_a_client_is_told_and_the_rest_is_not_generated(served: ServedGateway) -> None:
    served.says("ha ha ha ha ha ha ha ha ha ha ha ha ha ha")
    asked: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 60}
    asked["repetition_detection"] = {"max_pattern_size": 8, "min_count": 3}
    _, answer = await served.post("/v1/completions", asked)
    [choice] = answer["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", REPEATED)
    assert choice["text"].startswith("ha ha ha")
    assert answer["usage"]["completion_tokens"] < 30


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 2, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 2_000, "min_count": 2}, "max_pattern_size"),
    ],
)
async def test_what_makes_no_sense_is_refused(served: ServedGateway, wrong: dict[str, int], field: str) -> None:
    status, answer = await served.post(
        "/v1/completions", {"model": "tiny", "prompt": "a", "repetition_detection": wrong}
    )
    assert (status, answer["error"]["param"]) == (400, f"repetition_detection.{field}")
