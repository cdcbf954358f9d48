"""Sampling of tokens.

A token's random number depends on the request's seed and the token's index alone. So any worker that continues a
request draws the same sequence.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from livescale.services.worker.scheduling.batch import TokenSampling

SEED_BITS = (1 << 64) - 1

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]


def choose_tokens(logits: torch.Tensor, samplings: Sequence[TokenSampling]) -> list[int]:
    """Choose the token of each row of `logits` `[row, vocab]`, which is overwritten. Ties go to the lowest id."""
    logits = logits.cpu()
    for row, sampling in enumerate(samplings):
        if sampling.forbidden:
            logits[row, list(sampling.forbidden)] = float("-inf")
    # numpy's argmax is twenty times as fast as torch's.
    tokens: list[int] = logits.float().numpy().argmax(axis=1).tolist()
    for row, sampling in enumerate(samplings):
        if not sampling.is_greedy:
            tokens[row] = draw_token(logits[row].double().numpy(), sampling)
    return tokens


def draw_token(logits: Floats, sampling: TokenSampling) -> int:
    """Draw one token by temperature, then top_k, then top_p of what is left."""
    scaled = logits / sampling.params.temperature
    probabilities: Floats = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    candidates = likeliest(probabilities, sampling.params.top_k, sampling.params.top_p)
    cumulative = probabilities[candidates].cumsum()
    point = uniform(sampling.params.seed, sampling.index) * cumulative[-1]
    place = min(int(cumulative.searchsorted(point, side="right")), len(candidates) - 1)
    return int(candidates[place])


def likeliest(probabilities: Floats, top_k: int, top_p: float) -> Ids:
    """The ids that may be drawn: likeliest first where `top_k` or `top_p` cut, else by id."""
    ids = np.flatnonzero(probabilities)
    if 0 < top_k < len(ids):
        least = np.partition(probabilities, -top_k)[-top_k]
        ids = _by_likelihood(probabilities, np.flatnonzero(probabilities >= least))[:top_k]
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
