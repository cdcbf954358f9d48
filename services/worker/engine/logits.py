"""What a request's parameters do to a row of logits before a token is drawn, in vLLM's order. Pure.

The result depends on the row, the parameters and the tokens so far. So it is the same in every batch, and on every
worker that continues the request.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Compiled
from livescale.services.worker.scheduling.batch import Past
from livescale.shared.messages.requests import Sampling

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]
Words = npt.NDArray[np.int32]

NEVER = -np.inf
KINDS = {getattr(torch, name): number for name, number in TYPES.items()}
LEAST_PENALTY = 1e-100  # a smaller one makes logits infinite, of which no token can be drawn


def change_logits(logits: Floats, params: Sampling, past: Past) -> Floats:
    """Return the row `logits` after allowed_token_ids, bad_words, logit_bias and penalties. It is overwritten."""
    if params.allowed_token_ids:
        logits = _only(logits, params.allowed_token_ids)
    if params.bad_words:
        _forbid(logits, list(completing(params.bad_words, past.generated)))
    if params.logit_bias:
        ids, bias = zip(*params.logit_bias, strict=True)
        logits[list(ids)] += np.array(bias)
    _penalize(logits, params, past)
    return logits


class TokenMask:
    """Takes tokens out of rows of logits by masks of a bit for each, compiled where that was possible."""

    def __init__(self, compiled: Compiled | None) -> None:
        self._compiled = compiled

    def apply(self, row: torch.Tensor, mask: Words) -> None:
        """Give minus infinity to the tokens of `row` whose bit in `mask` is 0, the lowest bit first."""
        kind = KINDS.get(row.dtype)
        if self._compiled is None or kind is None or not row.is_contiguous():
            permitted = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little").view(np.bool_)
            row.masked_fill_(~torch.from_numpy(permitted), NEVER)
        else:
            self._compiled.mask_logits(kind, row.data_ptr(), mask.ctypes.data, len(row))


def completing(words: Sequence[Sequence[int]], generated: Sequence[int]) -> Iterator[int]:
    """Yield each token that would complete one of the words, which are sequences of tokens, after these."""
    for *beginning, last in words:
        if not beginning or tuple(generated[-len(beginning) :]) == tuple(beginning):
            yield last


def _only(logits: Floats, ids: Sequence[int]) -> Floats:
    allowed = np.full_like(logits, NEVER)
    allowed[ids] = logits[ids]
    return allowed


def _forbid(logits: Floats, ids: Sequence[int]) -> None:
    """Forbid these tokens, unless no other is left: a token has to be chosen."""
    before = logits[ids]
    logits[ids] = NEVER
    if logits.max() == NEVER:
        logits[ids] = before


def _penalize(logits: Floats, params: Sampling, past: Past) -> None:
    """Make tokens that occurred less likely: by the repetition penalty those of prompt and output, by the others those
    of the output."""
    output, counts = np.unique(np.array(past.generated, np.intp), return_counts=True)
    if params.repetition_penalty != 1.0:
        seen = np.union1d(np.array(past.prompt, np.intp), output)
        penalized, by = logits[seen], max(params.repetition_penalty, LEAST_PENALTY)
        logits[seen] = np.where(penalized > 0, penalized / by, penalized * by)
    logits[output] -= params.frequency_penalty * counts + params.presence_penalty
