"""Whether tokens are those that a reference would choose."""

import torch

TIE = 1e-3


def are_greedy(logits: torch.Tensor, tokens: list[int]) -> bool:
    """Whether each token has the highest of its row's logits, `[token, vocab]`, or ties with it."""
    behind = logits.max(dim=1).values - logits[range(len(tokens)), tokens]
    return bool((behind <= TIE * logits.std()).all())
