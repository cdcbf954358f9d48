"""Choosing tokens. The random number of a token depends on the request's seed and the token's index alone, so whoever
continues a request draws the same sequence."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from services.worker.batch import Draw

# Below this a temperature means greedy, as in vLLM: the division would overflow.
LEAST_TEMPERATURE = 1e-5
SEED_BITS = (1 << 64) - 1

Floats = npt.NDArray[np.float64]


def choose_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """The token of each row of `logits` `[row, vocab]`, which is overwritten. Ties go to the lowest id."""
    for row, draw in enumerate(draws):
        if draw.forbidden:
            logits[row, list(draw.forbidden)] = float("-inf")
    tokens: list[int] = logits.argmax(dim=1).tolist()
    for row, draw in enumerate(draws):
        if draw.sampling.temperature >= LEAST_TEMPERATURE:
            tokens[row] = draw_token(logits[row].double().numpy(), draw)
    return tokens


def draw_token(logits: Floats, draw: Draw) -> int:
    """One token by temperature, then top_k, then top_p of what is left."""
    scaled = logits / draw.sampling.temperature
    probabilities: Floats = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    candidates = likeliest(probabilities, draw.sampling.top_k, draw.sampling.top_p)
    cumulative = probabilities[candidates].cumsum()
    point = uniform(draw.sampling.seed, draw.index) * cumulative[-1]
    place = min(int(cumulative.searchsorted(point, side="right")), len(candidates) - 1)
    return int(candidates[place])


def likeliest(probabilities: Floats, top_k: int, top_p: float) -> npt.NDArray[np.intp]:
    """The ids that may be drawn; likeliest first where `top_k` or `top_p` cut, else by id."""
    # All tokens below this bound weigh less than 1 - top_p together: none can be among the top_p, none is sorted.
    bound = (1.0 - top_p) / len(probabilities)
    ids = np.flatnonzero(probabilities > bound)
    if top_k == 0 and top_p >= 1.0:
        return ids
    ids = ids[np.argsort(-probabilities[ids], kind="stable")][: top_k or None]
    cumulative = probabilities[ids].cumsum()
    kept = int(cumulative.searchsorted(top_p * cumulative[-1])) + 1
    return ids[:kept]


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) from the counter-based generator Philox: the same for the same arguments, everywhere."""
    return float(np.random.Generator(np.random.Philox(key=seed & SEED_BITS, counter=index)).random())
