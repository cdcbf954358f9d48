from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from livescale.load.rightness import CheckedStream, Rightness, check_streams
from livescale.shared.messages.parameters import DType, Family
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import FAMILIES, tiny_checkpoint

TORCH: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS = 40


@cache
def generated(family: Family, dtype: DType) -> tuple[CheckedStream, ...]:
    """Streams of transformers' own `generate`, one by one, prompts of 1 to 300 tokens."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint(family), dtype=TORCH[dtype])
    chance = torch.Generator().manual_seed(3)
    stops = load_model_config(tiny_checkpoint(family)).eos_token_ids
    streams = []
    for length in (1, 7, 40, 300):
        prompt = torch.randint(300, 1_000, (1, length), generator=chance)
        mask = torch.ones_like(prompt)
        output = model.generate(prompt, attention_mask=mask, max_new_tokens=TOKENS, min_new_tokens=TOKENS)[0]
        streams.append(CheckedStream(prompt[0].tolist(), output[length:].tolist(), stops, min_tokens=TOKENS))
    return tuple(streams)


def check(family: Family, dtype: DType, tokens: list[int] | None = None) -> Rightness:
    """Return the verdict, on other tokens of stream 2 if any are given."""
    streams = list(generated(family, dtype))
    if tokens is not None:
        streams[2] = replace(streams[2], generated=tokens)
    return check_streams(tiny_checkpoint(family), streams, dtype)


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_generates_is_right(family: Family, dtype: DType) -> None:
    verdict = check(family, dtype)
    assert verdict.ok, str(verdict)
    assert verdict.tokens == 4 * TOKENS
    assert "right" in str(verdict)


def test_float32_output_is_right_without_ties() -> None:
    verdict = check("llama", "float32")
    assert (verdict.ties, verdict.ties_allowed, verdict.band) == (0, 1, 1e-3)


def test_the_bfloat16_band_follows_from_transformers_own_error() -> None:
    verdict = check("llama", "bfloat16")
    assert 0.05 < verdict.band < 1.0
    assert verdict.ties <= verdict.ties_allowed < verdict.tokens / 3


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("index", [0, 17, TOKENS - 1])
def test_one_wrong_token_is_found(dtype: DType, index: int) -> None:
    right = list(generated("llama", dtype)[2].generated)
    wrong = [*right[:index], (right[index] + 500) % 1_000, *right[index + 1 :]]
    verdict = check("llama", dtype, wrong)
    assert not verdict.ok
    first = verdict.wrong[0]
    assert (first.stream, first.index, first.token, first.expected) == (2, index, wrong[index], right[index])
    assert "NOT right" in str(verdict)


@pytest.mark.parametrize("dtype", TORCH)
def test_two_swapped_tokens_are_found(dtype: DType) -> None:
    tokens = list(generated("llama", dtype)[2].generated)
    tokens[11], tokens[12] = tokens[12], tokens[11]
    verdict = check("llama", dtype, tokens)
    assert (verdict.wrong[0].stream, verdict.wrong[0].index) == (2, 11)


@pytest.mark.parametrize("dtype", TORCH)
def test_a_lost_token_and_a_repeated_one_are_found(dtype: DType) -> None:
    tokens = list(generated("llama", dtype)[2].generated)
    assert check("llama", dtype, tokens[:9] + tokens[10:]).wrong[0].index == 9
    assert check("llama", dtype, tokens[:9] + tokens[8:]).wrong[0].index == 9


@pytest.mark.parametrize("dtype", TORCH)
def test_the_tokens_of_another_prompt_are_found(dtype: DType) -> None:
    other = generated("llama", dtype)[3].generated
    assert not check("llama", dtype, list(other)).ok


def test_a_stop_token_before_its_time_is_wrong_even_if_the_model_prefers_it() -> None:
    stream = generated("llama", "float32")[2]
    first = stream.generated.index(stream.generated[5])
    early = replace(stream, stop_token_ids=[stream.generated[5]], min_tokens=first + 1)
    assert check_streams(tiny_checkpoint("llama"), [early], "float32").wrong[0].index == first
    late = replace(early, min_tokens=first)
    assert check_streams(tiny_checkpoint("llama"), [late], "float32").ok


def test_float32_tokens_do_not_excuse_bfloat16_ones() -> None:
    streams = generated("llama", "bfloat16")
    assert not check_streams(tiny_checkpoint("llama"), streams, "float32").ok


def test_too_many_ties_are_not_right() -> None:
    few = Rightness(tokens=10_000, ties=1, ties_allowed=1, band=1e-3, wrong=())
    assert few.ok
    assert not replace(few, ties=2).ok


@pytest.mark.parametrize("dtype", TORCH)
def test_streams_without_tokens_are_right_and_progress_is_told(dtype: DType) -> None:
    seen: list[tuple[int, int]] = []
    streams = [CheckedStream([5, 6], []), *generated("llama", dtype)[:2]]
    check_streams(tiny_checkpoint("llama"), streams, dtype, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert check_streams(tiny_checkpoint("llama"), [], dtype).ok


@pytest.mark.parametrize("stream", [CheckedStream([5, 1_019], [5]), CheckedStream([5], [-1]), CheckedStream([], [5])])
def test_what_cannot_be_a_stream_of_this_model_is_refused(stream: CheckedStream) -> None:
    with pytest.raises(ValueError, match="stream 0"):
        check_streams(tiny_checkpoint("llama"), [stream])


def test_the_number_of_threads_is_given_back() -> None:
    before = torch.get_num_threads()
    check_streams(tiny_checkpoint("llama"), generated("llama", "float32")[:1], "float32", threads=1)
    assert torch.get_num_threads() == before
