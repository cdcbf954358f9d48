"""How long steps take by what is in them, as learned from those that ran. Pure."""

from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.messages.membership import StepSpeed

# What a step counts for after the next one: some hundred steps matter, so that batches of all sizes are among them.
KEPT = 0.995
LEAST_VARIANCE = 0.25  # of the sizes of batches; with less, nothing can be said of other sizes


class _Means:
    """The means of what steps had, of which the last ones count most."""

    def __init__(self, *names: str) -> None:
        self._sums = dict.fromkeys(names, 0.0)
        self.count = 0.0

    def observe(self, **values: float) -> None:
        self.count = KEPT * self.count + 1
        for name, value in values.items():
            self._sums[name] = KEPT * self._sums[name] + value

    def __getitem__(self, name: str) -> float:
        return self._sums[name] / self.count


class StepFit:
    """Learns what a step of decodes takes as such and for each of them, and what prompts take, alone and beside."""

    def __init__(self) -> None:
        self._decodes = _Means("rows", "seconds", "squares", "products")
        self._prompts = _Means("rows", "seconds")
        self._beside = _Means("rows", "seconds")

    def observe(self, prompt_rows: int, decode_rows: int, seconds: float) -> None:
        """Learn from a step that had so many rows and took `seconds`."""
        if prompt_rows == 0:
            self._decodes.observe(
                rows=decode_rows, seconds=seconds, squares=decode_rows**2, products=decode_rows * seconds
            )
        elif decode_rows == 0:
            self._prompts.observe(rows=prompt_rows, seconds=seconds)
        elif (line := self._line()) is not None:
            self._beside.observe(rows=prompt_rows, seconds=seconds - line[0] - line[1] * decode_rows)

    def speed(self, limits: SchedulerLimits, prefill_rate: float | None) -> StepSpeed | None:
        """What was learned; None while too little was.

        Until prompts ran alone they count as fast as `prefill_rate`, in tokens a second, and until they ran beside
        decodes as the limits allow.
        """
        line = self._line()
        rate = self._prompts["rows"] / self._prompts["seconds"] if self._prompts.count else prefill_rate
        if line is None or not rate:
            return None
        rows, beside = min(limits.beside_seconds(line[0]) * rate, limits.max_num_batched_tokens), 0.0
        if self._beside.count:
            rows, beside = self._beside["rows"], self._beside["seconds"]
        else:
            beside = rows / rate
        return StepSpeed(
            step_seconds=line[0],
            row_seconds=line[1],
            prompt_tokens_per_second=rate,
            beside_tokens=rows,
            beside_seconds=max(0.0, beside),
        )

    def _line(self) -> tuple[float, float] | None:
        """What a step of decodes takes as such, and for each row; None as long as all had as many rows."""
        seen = self._decodes
        if not seen.count:
            return None
        rows, seconds = seen["rows"], seen["seconds"]
        variance = seen["squares"] - rows * rows
        if variance < LEAST_VARIANCE:
            return None
        row = max(0.0, (seen["products"] - rows * seconds) / variance)
        return max(0.0, seconds - row * rows), row
