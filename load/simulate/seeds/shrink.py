"""Makes a failing list shorter for as long as it still fails: delta debugging (Zeller and Hildebrandt, ddmin)."""

from collections.abc import Callable, Sequence
from itertools import pairwise


def shrink(items: Sequence[int], fails: Callable[[Sequence[int]], bool], tries: int) -> list[int]:
    """A part of `items`, in their order, that still `fails`, found with at most so many tries.

    With tries enough no single one of them can be left out.
    """
    left, parts = list(items), 2
    if tries > 0 and left:
        tries -= 1
        if fails([]):
            return []
    while len(left) >= 2:
        for rest in complements(left, parts):
            if tries <= 0:
                return left
            tries -= 1
            if fails(rest):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(left):
                return left
            parts = min(2 * parts, len(left))
    return left


def complements(items: Sequence[int], parts: int) -> list[list[int]]:
    """The items without their first part, without their second, and so on."""
    edges = [len(items) * part // parts for part in range(parts + 1)]
    return [[*items[:start], *items[stop:]] for start, stop in pairwise(edges)]
