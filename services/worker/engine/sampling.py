"""Sampling of tokens.

A token depends on its row of logits, its request's parameters and the tokens before it. Its random number depends on
the request's seed and the token's index alone. So any worker that continues a request draws the same sequence.
"""

import threading
from collections.abc import Sequence

import numpy as np
import torch
from msgspec import structs

from livescale.services.worker.engine.kernels.variants import find_compiled
from livescale.services.worker.engine.logits import Floats, Ids, TokenMask, change_logits
from livescale.services.worker.grammars.masks import NO_MASKS, StepMasks
from livescale.services.worker.scheduling.batch import Chosen, TokenSampling, changes_logits
from livescale.shared.messages.requests import Sampling, TokenLogprobs

STRETCH, MANY = 512, 2_048  # numbers that are compared at once, and so many that sorting them takes long
SEED_BITS = (1 << 64) - 1
TOKEN_MASK = TokenMask(find_compiled())


def choose_tokens(logits: torch.Tensor, samplings: Sequence[TokenSampling], permitted: StepMasks = NO_MASKS) -> Chosen:
    """Choose the token of each row of `logits` `[row, vocab]`, which is overwritten, among those that are `permitted`.
    Ties go to the lowest id."""
    logits = logits.cpu()
    asked = [row for row, sampling in enumerate(samplings) if sampling.params.logprobs is not None]
    changed_rows = permitted.masks.keys() | {row for row in asked if samplings[row].forbidden}
    given = {row: logits[row].clone() if row in changed_rows else logits[row] for row in asked}  # by the model
    for row, mask in permitted.masks.items():
        TOKEN_MASK.apply(logits[row], mask)
    for row, sampling in enumerate(samplings):
        if sampling.forbidden:
            logits[row, list(sampling.forbidden)] = float("-inf")
    # numpy's argmax is twenty times as fast as torch's.
    tokens: list[int] = logits.float().numpy().argmax(axis=1).tolist()
    for row, sampling in enumerate(samplings):
        if row in permitted.withheld:
            tokens[row] = 0
        elif sampling.past is not None and changes_logits(sampling.params):
            changed = change_logits(logits[row].double().numpy(), sampling.params, sampling.past)
            tokens[row] = int(changed.argmax()) if sampling.is_greedy else draw_token(changed, sampling)
        elif not sampling.is_greedy:
            tokens[row] = draw_token(logits[row].double().numpy(), sampling)
    if not given:
        return Chosen(tokens, withheld=dict(permitted.withheld)) if permitted.withheld else Chosen(tokens)
    # One row after the other, as its doubles fit a core's cache.
    return Chosen(
        tokens,
        {
            row: _asked_log_probabilities(_doubles(its), tokens[row], samplings[row].params)
            for row, its in given.items()
        },
        withheld=dict(permitted.withheld),
    )


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


def _doubles(logits: torch.Tensor) -> Floats:
    """A row of logits as doubles, until the next one is asked for."""
    row = KEPT.row("logits", len(logits))
    torch.from_numpy(row).copy_(logits)
    return row


def score_tokens(logits: torch.Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """How likely each of `tokens` is, by its row of `logits`, with the `count` likeliest, and its rank."""
    rows = (row.double().numpy() for row in logits.cpu())
    return [
        structs.replace(log_probabilities(row, token, count), rank=int((row >= row[token]).sum()))
        for row, token in zip(rows, tokens, strict=True)
    ]


def _asked_log_probabilities(logits: Floats, token: int, params: Sampling) -> TokenLogprobs:
    if not params.logprob_token_ids:
        return log_probabilities(logits, token, params.logprobs)
    return _named_log_probabilities(logits, token, params.logprob_token_ids)


def log_probabilities(logits: Floats, token: int, count: int | None) -> TokenLogprobs:
    """How likely `token` is by a row of logits, and the `count` likeliest, rounded to float32. Of equally likely ones
    the lowest ids are named."""
    return _named_log_probabilities(logits, token, _largest(logits, min(count or 0, len(logits))).tolist())


def _named_log_probabilities(logits: Floats, token: int, named: list[int]) -> TokenLogprobs:
    largest = logits.max()
    weights = np.subtract(logits, largest, out=KEPT.row("weights", len(logits)))
    np.exp(weights, out=weights)
    ids = [token, *named]
    own, *told = (logits[ids] - (largest + np.log(weights.sum()))).astype(np.float32).tolist()
    return TokenLogprobs(own, list(zip(ids[1:], told, strict=True)))


def _largest(numbers: Floats, count: int) -> Ids:
    """The places of the `count` largest numbers, the largest first, equal ones in order."""
    if count == 0:
        return np.empty(0, np.intp)
    ids = np.flatnonzero(numbers >= _bound(numbers, count))
    if len(ids) > MANY:
        ids = ids[numbers[ids] >= np.partition(numbers[ids], -count)[-count]]
    return _by_likelihood(numbers, ids)[:count]


def _bound(numbers: Floats, count: int) -> np.float64:
    """A number that at least `count` of `numbers` reach, and not many more: the largest of as many stretches do. That
    is found in a third of the time that the number in that place itself takes."""
    stretches, rest = divmod(len(numbers), STRETCH)
    if count > stretches:
        bound: np.float64 = np.partition(numbers, -count)[-count]
        return bound
    largest = numbers[: len(numbers) - rest].reshape(stretches, STRETCH).max(axis=1)
    return _bound(largest, count)


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
        ids = _largest(probabilities, top_k)
    if top_p < 1.0:
        total = probabilities[ids].sum()
        # What lies below this bound weighs less than 1 - top_p together: it is cut anyway, and need not be sorted.
        bound = (1.0 - top_p) * total / len(ids)
        ids = _by_likelihood(probabilities, ids[probabilities[ids] > bound])
        ids = ids[: int(probabilities[ids].cumsum().searchsorted(top_p * total)) + 1]
    return ids


def _by_likelihood(probabilities: Floats, ids: Ids) -> Ids:
    """Likeliest first, equally likely ones in the order given."""
    return ids[np.argsort(-probabilities[ids], kind="stable")]


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) from the counter-based generator Philox: the same for the same arguments on every machine."""
    return float(np.random.Generator(np.random.Philox(key=seed & SEED_BITS, counter=index)).random())
