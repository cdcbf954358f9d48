"""How long steps take by what is in them, fitted to those that ran. Pure."""

from livescale.services.worker.scheduling.batch import PREFILL_CHUNK
from livescale.shared.messages.membership import StepSpeed

# What a step counts for after the next one: some hundred steps matter, so that batches of all sizes are among them.
KEPT = 0.995
LEAST_VARIANCE = 0.25  # of the sizes of batches; with less, nothing can be said of other sizes


class _Line:
    """A straight line through points of which the last ones count most."""

    def __init__(self) -> None:
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        self._count = KEPT * self._count + 1
        self._x = KEPT * self._x + x
        self._y = KEPT * self._y + y
        self._xx = KEPT * self._xx + x * x
        self._xy = KEPT * self._xy + x * y

    def fit(self) -> tuple[float, float] | None:
        """Where the line starts, and how it rises, which is never down; None as long as all points are at one x."""
        if not self._count:
            return None
        x, y = self._x / self._count, self._y / self._count
        variance = self._xx / self._count - x * x
        if variance < LEAST_VARIANCE:
            return None
        rise = max(0.0, (self._xy / self._count - x * y) / variance)
        return y - rise * x, rise


class StepFit:
    """Learns from steps what a step takes as such, for each row that decodes, and for each row of a prompt."""

    def __init__(self) -> None:
        self._decodes = _Line()
        self._prompts = _Line()

    def observe(self, prompt_rows: int, decode_rows: int, seconds: float) -> None:
        """Learn from a step. Few rows of prompts are left out: a GPU may compute some beside decodes in no time."""
        if prompt_rows == 0:
            self._decodes.observe(decode_rows, seconds)
        elif prompt_rows >= PREFILL_CHUNK and (alone := self._decodes.fit()) is not None:
            self._prompts.observe(prompt_rows, seconds - alone[0] - alone[1] * decode_rows)

    def speed(self, tbt_ratio: float, prefill_rate: float | None) -> StepSpeed | None:
        """What was learned; None while too little was. Until steps had prompts of several lengths, prompts count as
        fast as `prefill_rate`, in tokens a second."""
        alone, prompts = self._decodes.fit(), self._prompts.fit()
        if alone is None:
            return None
        step, row = max(0.0, alone[0]), alone[1]
        saved, token = (0.0, 0.0) if prompts is None else (-prompts[0], prompts[1])
        if token <= 0:
            if not prefill_rate:
                return None
            saved, token = 0.0, 1 / prefill_rate
        return StepSpeed(
            step_seconds=step,
            row_seconds=row,
            token_seconds=token,
            saved_seconds=min(max(0.0, saved), step),
            tbt_ratio=tbt_ratio,
        )
