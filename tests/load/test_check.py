"""The demo's verdict: complete and right, or which request was not and why."""

from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from load.demo.check import check_run
from load.outcome import Verdict
from load.records import Ask, RequestRecord
from tests.load import happenings
from tests.made import tiny

TOKENS = 8


@cache
def served() -> tuple[tuple[Ask, ...], tuple[RequestRecord, ...]]:
    """Three requests, answered as transformers answers them."""
    model: Any = AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=torch.float32)
    asks, records = [], []
    for index, length in enumerate((3, 20, 60)):
        prompt = list(range(300, 300 + length))
        ids = torch.tensor([prompt])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS)
        asks.append(Ask(index, float(index), prompt, TOKENS))
        record = happenings.record(index, float(index), tokens=TOKENS)
        records.append(msgspec.structs.replace(record, token_ids=output[0, length:].tolist()))
    return tuple(asks), tuple(records)


def check(*records: RequestRecord) -> tuple[Verdict, list[str]]:
    told: list[str] = []
    return check_run(tiny("llama"), "float32", served()[0], records, told.append), told


def test_streams_as_transformers_makes_them_are_good() -> None:
    verdict, told = check(*reversed(served()[1]))  # they end in any order
    assert verdict.good, verdict
    assert (verdict.streams, verdict.tokens) == (3, 3 * TOKENS)
    assert "served in float32" in verdict.criterion
    assert told[-1] == "  checked 3 of 3"


def test_a_wrong_token_names_its_request() -> None:
    first, second, third = served()[1]
    other = (second.token_ids[4] + 1) % 1_000
    spoilt = msgspec.structs.replace(second, token_ids=[*second.token_ids[:4], other, *second.token_ids[5:]])
    verdict, _ = check(third, spoilt, first)
    assert not verdict.good
    assert verdict.wrong[0].startswith(f"request 1: token 4 is {other}, the reference has {second.token_ids[4]}")


def test_swapped_answers_are_wrong() -> None:
    first, second, third = served()[1]
    swapped = msgspec.structs.replace(first, token_ids=second.token_ids)
    assert not check(swapped, second, third)[0].good


def test_a_stream_that_is_not_complete_is_named_and_what_came_is_still_checked() -> None:
    first, second, _ = served()[1]
    short = msgspec.structs.replace(second, token_ids=second.token_ids[:5], error="the stream ended without [DONE]")
    verdict, _ = check(first, short)
    assert verdict.faults == ["request 1: the stream ended without [DONE]", "a request never ended"]
    assert verdict.wrong == []
    assert verdict.tokens == TOKENS + 5
    assert not verdict.good


def test_no_stream_at_all_shows_nothing() -> None:
    verdict = Verdict(streams=0, faults=[], tokens=0, wrong=[], ties=0, ties_allowed=1, criterion="")
    assert not verdict.good
    assert "nothing was shown" in verdict.sentence()


@pytest.mark.parametrize(("ties", "good"), [(1, True), (2, False)])
def test_more_ties_than_allowed_are_not_good(ties: int, good: bool) -> None:
    verdict = Verdict(streams=1, faults=[], tokens=8, wrong=[], ties=ties, ties_allowed=1, criterion="")
    assert verdict.good is good
