"""Sampling of tokens: what a request's parameters do to a row of logits, in vLLM's order, and the token that is drawn.

A token depends on its row of logits, its request's parameters and the tokens before it. Its random number depends on
the request's seed and the token's index alone. So it is the same in every batch, and any worker that continues a
request draws the same sequence.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from msgspec import structs

from livescale.services.worker.engine.kernels.variants import Compiled, Kernels, find_compiled
from livescale.services.worker.engine.likelihoods import (
    KINDS,
    Floats,
    Ids,
    LikelihoodsWanted,
    by_likelihood,
    largest,
    tell_likelihoods,
)
from livescale.services.worker.grammars.masks import NO_MASKS, MaskWords, StepMasks
from livescale.services.worker.scheduling.batch import Chosen, Past, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import Sampling, TokenLogprobs

NEVER = -np.inf
LEAST_PENALTY = 1e-100  # a smaller one makes logits infinite, of which no token can be drawn
SCORED_ROWS = 32  # of a prompt, of which there are logits at once
SEED_BITS = (1 << 64) - 1


class TokenMask:
    """Takes tokens out of rows of logits by masks of a bit for each, compiled where that was possible."""

    def __init__(self, compiled: Compiled | None) -> None:
        self._compiled = compiled

    def apply(self, row: torch.Tensor, mask: MaskWords) -> None:
        """Give minus infinity to the tokens of `row` whose bit in `mask` is 0, the lowest bit first."""
        kind = KINDS.get(row.dtype)
        if self._compiled is None or kind is None or not row.is_contiguous():
            permitted = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little").view(np.bool_)
            row.masked_fill_(~torch.from_numpy(permitted), NEVER)
        else:
            self._compiled.mask_logits(kind, row.data_ptr(), mask.ctypes.data, len(row))


TOKEN_MASK = TokenMask(find_compiled())


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


def choose_vectors(vectors: Sequence[bytes]) -> Chosen:
    """What a model that pools tells: a vector in place of the token of each sampling."""
    return Chosen([0] * len(vectors), {place: TokenLogprobs(0.0, pooled=one) for place, one in enumerate(vectors)})


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
