"""Checks served tokens against transformers in float32, with one teacher-forced prefill for each stream.

A token's regret is how far the reference's logit for it lies below the best one, in standard deviations of the logits
at that position. It is 0 for the reference's own choice. A token with a regret inside the band is a tie.

In float32 the band is 1e-3, and at most 1 token in 10,000 (but always one) may be a tie. In bfloat16 the band is six
times the largest error that transformers' own bfloat16 logits have on a sample of these streams. That error is the root
mean square over the vocabulary, in the same unit: two logits with such errors differ by the band once in 10^5. Ties may
be twice as frequent as with transformers' bfloat16 there, plus ten.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from livescale.shared.messages.parameters import DType

FLOAT32_BAND = 1e-3
FLOAT32_TIES = 1e-4
BFLOAT16_BAND_ERRORS = 6.0
BFLOAT16_TIES_FACTOR = 2.0
BFLOAT16_TIES_EXTRA = 10
SAMPLED_STREAMS = 32

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CheckedStream:
    """What one request asked for and got, greedily. No stop token may come before `min_tokens`."""

    prompt: Sequence[int]
    generated: Sequence[int]
    stop_token_ids: Sequence[int] = ()
    min_tokens: int = 0


@dataclass(frozen=True)
class WrongToken:
    """Token `index` of stream `stream` (both from 0) should have been `expected`."""

    stream: int
    index: int
    token: int
    expected: int
    regret: float


@dataclass(frozen=True)
class Rightness:
    """The verdict on all streams. `band` and `ties_allowed` are the criterion that was applied."""

    tokens: int
    ties: int
    ties_allowed: int
    band: float
    wrong: tuple[WrongToken, ...]

    @property
    def ok(self) -> bool:
        return not self.wrong and self.ties <= self.ties_allowed

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens, {len(self.wrong)} wrong, {self.ties} ties within {self.band:.2g} standard "
            f"deviations ({self.ties_allowed} allowed): {'right' if self.ok else 'NOT right'}"
        )


def check_streams(
    model_dir: Path,
    streams: Sequence[CheckedStream],
    dtype: DType = "bfloat16",
    threads: int = 1,
    on_progress: Progress = lambda done, total: None,
) -> Rightness:
    """Judge `streams` served in `dtype`. Blocks for about as long as prefilling them all takes on `threads` threads.

    `on_progress(done, total)` is called after each stream. Raises ValueError for a token outside the vocabulary.
    """
    numbers = [number for number, stream in enumerate(streams) if stream.generated]
    sample = numbers[:: -(-len(numbers) // SAMPLED_STREAMS)] if dtype == "bfloat16" and numbers else []
    judged, rounded = {}, []
    with _threads(threads), torch.inference_mode():
        exact = _load(model_dir, torch.float32)
        rough = _load(model_dir, torch.bfloat16) if sample else exact
        _refuse_unknown_tokens(streams, exact.config.vocab_size)
        for done, number in enumerate(numbers, start=1):
            logits = _logits(exact, streams[number])
            judged[number] = _judge(logits, streams[number])
            if number in sample:
                rounded.append(_compare(logits, _logits(rough, streams[number]), streams[number]))
            on_progress(done, len(numbers))
    tokens = sum(len(streams[number].generated) for number in numbers)
    return _verdict(streams, judged, _criterion(dtype, tokens, rounded))


@dataclass(frozen=True)
class _JudgedTokens:
    """Per generated token: its regret, and the reference's choice."""

    regrets: list[float]
    expected: list[int]


@dataclass(frozen=True)
class _Rounded:
    """What bfloat16 does to transformers itself on one stream: the largest error, and how often it chose otherwise."""

    error: float
    tokens: int
    otherwise: int


@dataclass(frozen=True)
class _Criterion:
    band: float
    ties_allowed: int


def _criterion(dtype: DType, tokens: int, rounded: Sequence[_Rounded]) -> _Criterion:
    if dtype == "float32" or not rounded:
        return _Criterion(FLOAT32_BAND, max(1, int(FLOAT32_TIES * tokens)))
    share = sum(one.otherwise for one in rounded) / sum(one.tokens for one in rounded)
    band = BFLOAT16_BAND_ERRORS * max(one.error for one in rounded)
    return _Criterion(band, int(BFLOAT16_TIES_FACTOR * share * tokens) + BFLOAT16_TIES_EXTRA)


def _verdict(streams: Sequence[CheckedStream], judged: Mapping[int, _JudgedTokens], criterion: _Criterion) -> Rightness:
    rows = [
        WrongToken(number, index, streams[number].generated[index], expected, regret)
        for number, one in judged.items()
        for index, (regret, expected) in enumerate(zip(one.regrets, one.expected, strict=True))
    ]
    return Rightness(
        tokens=len(rows),
        ties=sum(0 < row.regret <= criterion.band for row in rows),
        ties_allowed=criterion.ties_allowed,
        band=criterion.band,
        wrong=tuple(row for row in rows if row.regret > criterion.band),
    )


def _judge(logits: torch.Tensor, stream: CheckedStream) -> _JudgedTokens:
    allowed = _without_stops(logits / _unit(logits), stream)
    best, expected = allowed.max(-1)
    chosen = allowed.gather(1, torch.tensor(stream.generated)[:, None])[:, 0]
    return _JudgedTokens((best - chosen).tolist(), expected.tolist())


def _compare(exact: torch.Tensor, rough: torch.Tensor, stream: CheckedStream) -> _Rounded:
    error = ((rough - exact) / _unit(exact)).square().mean(-1).sqrt().max()
    choices = (_without_stops(logits, stream).argmax(-1) for logits in (exact, rough))
    return _Rounded(float(error), len(stream.generated), int(torch.ne(*choices).sum()))


def _logits(model: "transformers.PreTrainedModel", stream: CheckedStream) -> torch.Tensor:
    """What the reference would choose from at each generated position: [generated, vocabulary], float32."""
    ids = torch.tensor([[*stream.prompt, *stream.generated[:-1]]])
    logits: torch.Tensor = model(ids, logits_to_keep=len(stream.generated), use_cache=False).logits[0]
    return logits.float()


def _unit(logits: torch.Tensor) -> torch.Tensor:
    return logits.std(-1, correction=0, keepdim=True)


def _without_stops(logits: torch.Tensor, stream: CheckedStream) -> torch.Tensor:
    masked = logits.clone()
    masked[: stream.min_tokens, list(stream.stop_token_ids)] = -torch.inf
    return masked


def _load(model_dir: Path, dtype: torch.dtype) -> "transformers.PreTrainedModel":
    disable_progress_bar()
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=dtype, local_files_only=True
    )
    model.eval()
    return model


def _refuse_unknown_tokens(streams: Sequence[CheckedStream], vocab_size: int) -> None:
    for number, stream in enumerate(streams):
        if not stream.prompt:
            raise ValueError(f"stream {number} has no prompt")
        for token in (*stream.prompt, *stream.generated):
            if not 0 <= token < vocab_size:
                raise ValueError(f"stream {number}: token {token} is outside the vocabulary of {vocab_size}")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
