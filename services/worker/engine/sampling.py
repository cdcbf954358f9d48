"""Sampling of tokens.

A token depends on its row of logits, its request's parameters and the tokens before it. Its random number depends on
the request's seed and the token's index alone. So any worker that continues a request draws the same sequence.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from msgspec import structs

from livescale.services.worker.engine.kernels.variants import Kernels, find_compiled
from livescale.services.worker.engine.logits import KINDS, Floats, Ids, TokenMask, change_logits
from livescale.services.worker.grammars.masks import NO_MASKS, StepMasks
from livescale.services.worker.scheduling.batch import Chosen, Past, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import Sampling, TokenLogprobs

SCORED_ROWS = 32  # of a prompt, of which there are logits at once
STRETCH, MANY = 512, 2_048  # numbers that are compared at once, and so many that sorting them takes long

SEED_BITS = (1 << 64) - 1
TOKEN_MASK = TokenMask(find_compiled())


@dataclass(frozen=True)
class LikelihoodsWanted:
    """Asks how likely `token` is by a row of `logits` `[vocab]`, None for the likeliest, and the tokens that are
    `named`, or else the `count` likeliest."""

    logits: torch.Tensor
    token: int | None
    count: int
    named: Sequence[int] = ()


class RowLikelihoods(NamedTuple):
    """A token that was asked for, or the likeliest, and how likely it and others are."""

    token: int
    logprobs: TokenLogprobs


def tell_likelihoods(asked: Sequence[LikelihoodsWanted], kernels: Kernels | None) -> list[RowLikelihoods]:
    """Answer each of `asked`, whose rows have one type, rounded to float32. Of equally likely tokens the lowest ids are
    named. What is told of a row depends on that row alone. Raises IndexError for what is no token."""
    kind = KINDS.get(asked[0].logits.dtype) if asked else None
    if kernels is None or kind is None:
        # One row after the other, as its doubles fit a core's cache.
        return [_told(one) for one in asked]
    return _tell_compiled(asked, kernels, kind)


def _tell_compiled(asked: Sequence[LikelihoodsWanted], kernels: Kernels, kind: int) -> list[RowLikelihoods]:
    """The same in one call. Each row of `rows` is a `Likelihoods` of kernels.h."""
    logits = [one.logits.contiguous() for one in asked]
    counts = [len(one.named) or min(one.count, len(one.logits)) for one in asked]
    ids = np.zeros((len(asked), max(counts)), np.int64)
    told = np.empty((len(asked), 1 + max(counts)), np.float32)
    for row, one in enumerate(asked):
        if not all(0 <= token < len(one.logits) for token in (one.token or 0, *one.named)):
            raise IndexError(f"one of {[one.token, *one.named]} is no token: there are {len(one.logits)}")
        ids[row, : len(one.named)] = one.named
    first_id, first_told = ids.ctypes.data, told.ctypes.data
    rows = np.array(
        [
            (its.data_ptr(), len(its), _number(one.token), len(one.named), count, first_id, first_told)
            for its, one, count in zip(logits, asked, counts, strict=True)
        ],
        np.int64,
    )
    rows[:, 5] += ids.strides[0] * np.arange(len(asked))
    rows[:, 6] += told.strides[0] * np.arange(len(asked))
    kernels.likelihoods(kind, rows.ctypes.data, len(asked))
    return [
        RowLikelihoods(token, TokenLogprobs(own, list(zip(others[:count], likely[:count], strict=True))))
        for token, others, (own, *likely), count in zip(
            rows[:, 2].tolist(), ids.tolist(), told.tolist(), counts, strict=True
        )
    ]


def _number(token: int | None) -> int:
    """The token as kernels read it."""
    return -1 if token is None else token


class KeptRows(threading.local):
    """Rows of doubles that a thread uses again: memory that is new takes longer to get than to compute with."""

    def __init__(self) -> None:
        self._rows: dict[str, Floats] = {}

    def row(self, name: str, size: int) -> Floats:
        """The row of this name, with anything in it. It counts until this name is asked for again."""
        row = self._rows.get(name)
        if row is None or len(row) < size:
            row = self._rows[name] = np.empty(size)
        return row[:size]


KEPT = KeptRows()


def _told(asked: LikelihoodsWanted) -> RowLikelihoods:
    logits = KEPT.row("logits", len(asked.logits))
    torch.from_numpy(logits).copy_(asked.logits)
    token = int(logits.argmax()) if asked.token is None else asked.token
    named = list(asked.named) or largest(logits, min(asked.count, len(logits))).tolist()
    top = logits.max()
    weights = np.subtract(logits, top, out=KEPT.row("weights", len(logits)))
    np.exp(weights, out=weights)
    own, *told = (logits[[token, *named]] - (top + np.log(weights.sum()))).astype(np.float32).tolist()
    return RowLikelihoods(token, TokenLogprobs(own, list(zip(named, told, strict=True))))


def largest(numbers: Floats, count: int) -> Ids:
    """The places of the `count` largest numbers, the largest first, equal ones in order."""
    if count == 0:
        return np.empty(0, np.intp)
    ids = np.flatnonzero(numbers >= _bound(numbers, count))
    if len(ids) > MANY:
        ids = ids[numbers[ids] >= np.partition(numbers[ids], -count)[-count]]
    return by_likelihood(numbers, ids)[:count]


def by_likelihood(probabilities: Floats, ids: Ids) -> Ids:
    """Likeliest first, equally likely ones in the order given."""
    return ids[np.argsort(-probabilities[ids], kind="stable")]


def _bound(numbers: Floats, count: int) -> np.float64:
    """A number that at least `count` of `numbers` reach, and not many more: the largest of as many stretches do. That
    is found in a third of the time that the number in that place itself takes."""
    stretches, rest = divmod(len(numbers), STRETCH)
    if count > stretches:
        bound: np.float64 = np.partition(numbers, -count)[-count]
        return bound
    tops = numbers[: len(numbers) - rest].reshape(stretches, STRETCH).max(axis=1)
    return _bound(tops, count)


def choose_tokens(
    logits: torch.Tensor,
    samplings: Sequence[TokenSampling],
    permitted: StepMasks = NO_MASKS,
    kernels: Kernels | None = None,
) -> Chosen:
    """Choose the token of each row of `logits` `[row, vocab]`, which is overwritten, among those that are `permitted`.
    Ties go to the lowest id. `kernels` tell how likely tokens are, or else numpy."""
    logits = logits.cpu()
    asked = [row for row, sampling in enumerate(samplings) if sampling.params.logprobs is not None]
    changed_rows = permitted.masks.keys() | {row for row in asked if samplings[row].forbidden}
    given = {row: logits[row].clone() if row in changed_rows else logits[row] for row in asked}  # by the model
    for row, mask in permitted.masks.items():
        TOKEN_MASK.apply(logits[row], mask)
    for row, sampling in enumerate(samplings):
        if sampling.forbidden:
            logits[row, list(sampling.forbidden)] = float("-inf")
    # What tells how likely tokens are finds the likeliest, too.
    known = changed_rows | permitted.withheld.keys()
    found = {row for row in asked if row not in known and _is_likeliest(samplings[row])}
    chosen = _choose(logits, samplings, permitted, [row for row in range(len(samplings)) if row not in found])
    told = tell_likelihoods(
        [_asked(its, chosen.get(row), samplings[row].params) for row, its in given.items()], kernels
    )
    chosen.update(zip(given, (one.token for one in told), strict=True))
    return Chosen(
        [chosen[row] for row in range(len(samplings))],
        {row: one.logprobs for row, one in zip(given, told, strict=True)},
        withheld=dict(permitted.withheld),
    )


def _choose(
    logits: torch.Tensor, samplings: Sequence[TokenSampling], permitted: StepMasks, rows: Sequence[int]
) -> dict[int, int]:
    """The tokens of these rows, of which others are masked already."""
    if not rows:
        return {}
    left = logits if len(rows) == len(logits) else logits[list(rows)]
    # numpy's argmax is twenty times as fast as torch's.
    tokens: dict[int, int] = dict(zip(rows, left.float().numpy().argmax(axis=1).tolist(), strict=True))
    for row in rows:
        sampling = samplings[row]
        if row in permitted.withheld:
            tokens[row] = 0
        elif _is_changed(sampling):
            changed = change_logits(logits[row].double().numpy(), sampling.params, sampling.past or Past())
            tokens[row] = int(changed.argmax()) if sampling.is_greedy else draw_token(changed, sampling)
        elif not sampling.is_greedy:
            tokens[row] = draw_token(logits[row].double().numpy(), sampling)
    return tokens


def _is_changed(sampling: TokenSampling) -> bool:
    """Whether parameters change the row's logits."""
    return sampling.past is not None and sampling.params.changes_logits


def _is_likeliest(sampling: TokenSampling) -> bool:
    """Whether the likeliest token by the model is chosen."""
    return sampling.is_greedy and not sampling.forbidden and not _is_changed(sampling)


def _asked(logits: torch.Tensor, token: int | None, params: Sampling) -> LikelihoodsWanted:
    return LikelihoodsWanted(logits, token, params.logprobs or 0, params.logprob_token_ids)


def score_tokens(
    logits: torch.Tensor, tokens: Sequence[int], count: int, kernels: Kernels | None = None
) -> list[TokenLogprobs]:
    """How likely each of `tokens` is, by its row of `logits`, with the `count` likeliest, and its rank."""
    logits = logits.cpu()
    told = tell_likelihoods(
        [LikelihoodsWanted(row, token, count) for row, token in zip(logits, tokens, strict=True)], kernels
    )
    ranks = (logits >= logits.gather(1, torch.tensor(tokens).unsqueeze(1))).sum(1).tolist()
    return [structs.replace(one.logprobs, rank=rank) for one, rank in zip(told, ranks, strict=True)]


def score_prompts(
    hidden: torch.Tensor,
    chunks: Sequence[ScheduledChunk],
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    kernels: Kernels | None,
    *,
    tells: bool,
) -> dict[int, list[TokenLogprobs]]:
    """How likely tokens of prompts are, by the place of the chunk, whose rows are in `hidden`. Logits are made in
    slabs, as they are large, and also by ranks that tell nothing: the others wait for theirs."""
    scored, first = dict[int, list[TokenLogprobs]](), 0
    for number, chunk in enumerate(chunks):
        if chunk.scoring is not None:
            told = scored[number] = []
            for start in range(0, len(chunk.scoring.following), SCORED_ROWS):
                tokens = chunk.scoring.following[start : start + SCORED_ROWS]
                logits = logits_of(hidden[first + start : first + start + len(tokens)])
                if tells:
                    told += score_tokens(logits, tokens, chunk.scoring.top, kernels)
        first += len(chunk.tokens)
    return scored


def draw_token(logits: Floats, sampling: TokenSampling) -> int:
    """Draw one token by temperature, then min_p, then top_k, then top_p of what is left."""
    scaled = logits / sampling.params.temperature
    probabilities: Floats = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    if sampling.params.min_p > 0.0:
        probabilities[probabilities < sampling.params.min_p * probabilities.max()] = 0.0
    candidates = likeliest(probabilities, sampling.params.top_k, sampling.params.top_p)
    cumulative = probabilities[candidates].cumsum()
    point = uniform(sampling.params.seed, sampling.index) * cumulative[-1]
    place = min(int(cumulative.searchsorted(point, side="right")), len(candidates) - 1)
    return int(candidates[place])


def likeliest(probabilities: Floats, top_k: int, top_p: float) -> Ids:
    """The ids that may be drawn: likeliest first where `top_k` or `top_p` cut, else by id."""
    ids = np.flatnonzero(probabilities)
    if 0 < top_k < len(ids):
        ids = largest(probabilities, top_k)
    if top_p < 1.0:
        total = probabilities[ids].sum()
        # What lies below this bound weighs less than 1 - top_p together: it is cut anyway, and need not be sorted.
        bound = (1.0 - top_p) * total / len(ids)
        ids = by_likelihood(probabilities, ids[probabilities[ids] > bound])
        ids = ids[: int(probabilities[ids].cumsum().searchsorted(top_p * total)) + 1]
    return ids


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) from the counter-based generator Philox: the same for the same arguments on every machine."""
    return float(np.random.Generator(np.random.Philox(key=seed & SEED_BITS, counter=index)).random())
