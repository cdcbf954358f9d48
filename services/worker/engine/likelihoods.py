"""How likely tokens are by rows of logits, and which are the likeliest. What is told of a row depends on it alone."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels
from livescale.shared.messages.requests import TokenLogprobs

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

KINDS = {getattr(torch, name): number for name, number in TYPES.items()}
STRETCH, MANY = 512, 2_048  # numbers that are compared at once, and so many that sorting them takes long


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
