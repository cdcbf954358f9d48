"""The last first token of choices, as it is read from streams."""

from typing import Any

import pytest

from livescale.load.bench.requests.choices import CHOICES, PROMPT_TOKENS, choice_rows, note_tokens, request_body
from livescale.load.bench.samples import BenchFailed


def test_no_two_prompts_begin_alike_and_choices_share_one() -> None:
    one: Any = request_body(1, 1)
    many: Any = request_body(1, CHOICES)
    assert {name for name in one if one[name] != many[name]} == {"n"}
    assert len(one["prompt"]) == PROMPT_TOKENS
    other: Any = request_body(2, 1)
    assert one["prompt"][:8] != other["prompt"][:8]


def test_the_first_token_of_each_choice_counts() -> None:
    begun: dict[int, float] = {}
    for at, index, tokens in ((1.0, 0, []), (2.0, 0, [5]), (3.0, 1, [6]), (4.0, 0, [7])):
        note_tokens(begun, {"choices": [{"index": index, "token_ids": tokens}]}, at)
    assert begun == {0: 2.0, 1: 3.0}
    with pytest.raises(BenchFailed, match="too long"):
        note_tokens(begun, {"error": {"message": "too long"}}, 5.0)


def test_choices_are_held_against_prompts_and_against_one() -> None:
    seconds = {"choices": [0.1, 0.12, 9.0], "prompts": [0.6, 0.6, 0.6], "one": [0.1, 0.1, 0.1]}
    to_prompts, to_one = choice_rows(seconds)
    assert (to_prompts.ratio, to_prompts.ok) == (pytest.approx(0.2), True)
    assert (to_one.ratio, to_one.ok) == (pytest.approx(1.2), True)
    assert [row.ok for row in choice_rows({**seconds, "choices": [0.2]})] == [False, False]
