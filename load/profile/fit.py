"""From measured steps to a latency: least squares of relative errors, no figure below zero."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from livescale.shared.model.latency import Latency, Work

DIGITS = 4


@dataclass(frozen=True)
class Measured:
    """How long a step took."""

    work: Work
    seconds: float


def fit(steps: Sequence[Measured], source: str) -> Latency:
    """Steps that prefill and steps that decode, several of each and none that does both."""
    prefill = [step for step in steps if step.work.prefill_tokens]
    decode = [step for step in steps if step.work.decode_rows]
    return Latency(
        source=source,
        prefill=_solve([(1, one.work.prefill_tokens, one.work.prefill_squares) for one in prefill], prefill),
        decode=_solve([(1, one.work.decode_rows, one.work.decode_kv_tokens) for one in decode], decode),
    )


def worst_error(latency: Latency, steps: Sequence[Measured]) -> float:
    """Of what was measured, as a share of it."""
    return max(abs(latency.seconds(step.work) / step.seconds - 1) for step in steps)


def _solve(factors: Sequence[tuple[int, int, int]], steps: Sequence[Measured]) -> tuple[float, float, float]:
    """The milliseconds for each column of `factors`."""
    milliseconds = np.array([step.seconds * 1e3 for step in steps])
    # Each row over what was measured, so that short steps count as much as long ones.
    relative = np.array(factors, dtype=np.float64) / milliseconds[:, None]
    solution, _ = nnls(relative, np.ones(len(steps)))
    step, linear, quadratic = (float(f"{figure:.{DIGITS}g}") for figure in solution)
    return step, linear, quadratic
