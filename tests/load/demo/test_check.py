"""The demo's verdict: complete and right, or which request was not and why."""

from functools import cache
from typing import Any

import msgspec
import pytest
import torch
import transformers

from livescale.load.demo.check import check_run, choose_again, compare_again
from livescale.load.outcome import StreamsVerdict
from livescale.load.records import Ask, RequestRecord
from tests.checkpoints import tiny_checkpoint
from tests.load import sample_run

TOKENS = 8


@cache
def served() -> tuple[tuple[Ask, ...], tuple[RequestRecord, ...]]:
    """Three requests with the answers of transformers."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)
    asks, records = [], []
    for index, length in enumerate((3, 20, 60)):
        prompt = list(range(300, 300 + length))
        ids = torch.tensor([prompt])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS)
        asks.append(Ask(index, float(index), prompt, TOKENS))
        record = sample_run.record(index, float(index), tokens=TOKENS)
        records.append(msgspec.structs.replace(record, token_ids=output[0, length:].tolist()))
    return tuple(asks), tuple(records)


def check(*records: RequestRecord) -> tuple[StreamsVerdict, list[str]]:
    told: list[str] = []
    return check_run(tiny_checkpoint("llama"), "float32", served()[0], records, told.append), told


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


def asked(*indices: int) -> list[Ask]:
    return [Ask(index, float(index), [1, 2, 3], TOKENS) for index in indices]


def test_requests_that_changed_hands_are_asked_again_first_and_failed_ones_never() -> None:
    records = [sample_run.record(index, float(index)) for index in range(60)]
    records[44] = msgspec.structs.replace(records[44], error="lost")
    newcomers = sample_run.told(sample_run.live_scale()).newcomers(sample_run.START)
    chosen = [ask.index for ask in choose_again(asked(*range(60)), records, newcomers, 4)]
    assert chosen == [45, 0, 19, 38]
    assert [ask.index for ask in choose_again(asked(0, 1), records[:2], [])] == [0, 1]
    assert choose_again(asked(0), [], newcomers) == []


def test_other_tokens_when_asked_again_are_told_bit_by_bit() -> None:
    before = [sample_run.record(index, float(index)) for index in range(3)]
    other = msgspec.structs.replace(before[1], token_ids=[*before[1].token_ids[:5], 7, *before[1].token_ids[6:]])
    failed = msgspec.structs.replace(before[2], error="refused")
    assert compare_again(before, before) == []
    assert compare_again(before, [before[0], other, failed]) == [
        f"request 1: token 5 was {before[1].token_ids[5]}, and is 7 when asked undisturbed",
        "request 2, asked again: refused",
    ]
    verdict = StreamsVerdict(
        streams=3, faults=[], tokens=24, wrong=[], ties=0, ties_allowed=1, criterion="", again=3, changed=["one"]
    )
    assert not verdict.good
    assert "of 3 asked again undisturbed, 1 had other tokens" in verdict.sentence()


def test_no_stream_at_all_shows_nothing() -> None:
    verdict = StreamsVerdict(streams=0, faults=[], tokens=0, wrong=[], ties=0, ties_allowed=1, criterion="")
    assert not verdict.good
    assert "nothing was shown" in verdict.sentence()


@pytest.mark.parametrize(("ties", "good"), [(1, True), (2, False)])
def test_more_ties_than_allowed_are_not_good(ties: int, good: bool) -> None:
    verdict = StreamsVerdict(streams=1, faults=[], tokens=8, wrong=[], ties=ties, ties_allowed=1, criterion="")
    assert verdict.good is good
