"""How fast the engine is: moving averages of tokens per second, None until measured, and how long steps take by what is
in them. Pure."""

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from livescale.services.worker.scheduling.batch import PROMPT_CUT, Batch, ScheduledChunk
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.messages.membership import EngineLoad, StepSpeed

# What a step counts for after the next one; about the last ten steps matter.
KEPT = 0.9
# A step counts as prefill when so much of it is: decodes that ride along hardly change its time.
PREFILL_SHARE = 0.75
# Where there are prompts beside decodes all the time, they wait for a step after so many: what decodes take is seen
# only when they run alone.
STEPS_BESIDE = 16
# What a step of as many decodes counts for that took longer than before: a single one between others is longer, as it
# finds nothing of the parameters in the caches.
LONGER = 1 / 8
# So many rows of prompts go beside decodes until it was measured what both take: more could hold decodes up for long,
# as where an instance that only decoded gets its first prompt.
FIRST_ROWS = 2 * PROMPT_CUT


class TokenRate:
    """Tokens per second over the last steps, where long steps count for more."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: float, seconds: float) -> None:
        """Learn from a step that computed `tokens` in `seconds`."""
        self._tokens = KEPT * self._tokens + tokens
        self._seconds = KEPT * self._seconds + seconds

    @property
    def per_second(self) -> float | None:
        """Tokens per second; None before the first step."""
        return self._tokens / self._seconds if self._seconds > 0 else None


class StepsBeside:
    """What rows of prompts added to the last steps of decodes. A step counts by its rows: many say what many would add,
    and a few may have added nothing."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._seconds = 0.0

    def observe(self, rows: float, seconds: float) -> None:
        """Learn from a step that took `seconds` longer for so many rows."""
        self._weight = KEPT * self._weight + rows
        self._rows = KEPT * self._rows + rows * rows
        self._seconds = KEPT * self._seconds + rows * seconds

    def rows_in(self, seconds: float, prompts: float | None) -> float | None:
        """How many rows would add `seconds`, where prompts alone have this rate; None while neither is known.

        Where a step takes some time whatever is in it, the first rows add less than they take alone, or nothing. So
        those that were seen to cost nothing are counted first, and all others as if they ran alone. While it is not
        known what that takes, at most twice as many are tried.
        """
        if not self._weight:
            return None if prompts is None else seconds * prompts
        rows, added = self._rows / self._weight, self._seconds / self._weight
        rate = min(prompts or inf, rows / added if added else inf)
        found = inf if rate == inf else rows + (seconds - added) * rate
        return min(found, 2 * rows) if prompts is None else found


class DecodePace:
    """How long the decodes of a step take alone, and how much rows of prompts add to it."""

    def __init__(self) -> None:
        self._prompts = TokenRate()
        self._beside_decodes = StepsBeside()
        self._decodes = 0  # rows, when they were last seen alone
        self._seconds = 0.0
        self._beside = 0  # steps since then

    def observe(self, prompt_rows: float, decode_rows: int, seconds: float) -> None:
        """Learn from a step that had so many rows and took `seconds`. A row that ran through a part of the model counts
        as that part."""
        alone = self._alone(decode_rows)
        if prompt_rows == 0:
            counts = LONGER if decode_rows == self._decodes and seconds > alone else 1 / 2
            self._seconds = alone + (seconds - alone) * (counts if self._decodes else 1)
            self._decodes, self._beside = decode_rows, 0
        elif decode_rows == 0:
            self._prompts.observe(prompt_rows, seconds)
        else:
            self._beside += 1
            if self._decodes:
                self._beside_decodes.observe(prompt_rows, max(seconds - alone, 0.0))

    def ran_beside(self) -> None:
        """Note that a step with prompts and decodes was run from which nothing can be learned."""
        self._beside += 1

    @property
    def is_stale(self) -> bool:
        """Whether the next step should run decodes alone, to measure them again."""
        return self._beside >= (STEPS_BESIDE if self._decodes else 1)

    def prompt_rows(self, decode_rows: int, limits: SchedulerLimits) -> float:
        """The rows of prompts with which decodes take as long as the limits allow; a few while that is not known."""
        if not self._decodes:
            return FIRST_ROWS
        seconds = limits.beside_seconds(self._alone(decode_rows))
        rows = self._beside_decodes.rows_in(seconds, self._prompts.per_second)
        return FIRST_ROWS if rows is None else rows

    @property
    def seconds_alone(self) -> float:
        """Seconds that the decodes of a step took alone, when they last did; 0 before."""
        return self._seconds

    def _alone(self, decode_rows: int) -> float:
        """Seconds that so many decodes take alone.

        More rows than were measured would take longer. Fewer may take nearly as long, but that is not known.
        """
        return self._seconds * min(1.0, decode_rows / self._decodes) if self._decodes else 0.0


class EngineRates:
    """The rates of prefill, of decode and of parts of the model.

    A step that is neither mostly prefill nor wholly decode says nothing about either.
    """

    def __init__(self) -> None:
        self.pace = DecodePace()
        self.steps = StepFit()
        self._prefill = TokenRate()
        self._decode = TokenRate()
        self._part = TokenRate()
        self._copied = TokenRate()  # of bytes
        self.fetch_tokens_per_second: float | None = None  # KV from host memory

    @property
    def part_tokens_per_second(self) -> float | None:
        """The rate of prefill through the whole model, estimated from steps through parts of it."""
        return self._part.per_second

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """The rate of prefill; None until a step was mostly prefill."""
        return self._prefill.per_second

    @property
    def decode_tokens_per_second(self) -> float | None:
        """The rate of decodes over all requests together; None until a step ran decodes alone."""
        return self._decode.per_second

    @property
    def copied_bytes_per_second(self) -> float | None:
        """The rate at which KV that came is copied into the cache; None before any was."""
        return self._copied.per_second

    def observe_copy(self, size_bytes: int, seconds: float) -> None:
        """Learn from a copy of KV into the cache that took `seconds`."""
        self._copied.observe(size_bytes, seconds)

    def observe(self, batch: Batch, seconds: float) -> None:
        """Learn from a step that took `seconds`. A step whose rows entered at later layers says nothing, but that
        decodes were not alone."""
        if any(chunk.layer for chunk in batch.chunks):
            if batch.decode_rows:
                self.pace.ran_beside()
            return
        self.pace.observe(batch.prefill_rows, batch.decode_rows, seconds)
        self.steps.observe(batch.prefill_rows, batch.decode_rows, seconds)
        rows = batch.prefill_rows + batch.decode_rows
        if batch.prefill_rows == 0:
            self._decode.observe(rows, seconds)
        elif batch.prefill_rows >= PREFILL_SHARE * rows:
            self._prefill.observe(rows, seconds)

    def told(self, load: EngineLoad, limits: SchedulerLimits) -> EngineLoad:
        """What an engine with these rates has to do and room for."""
        return replace(
            load,
            prefill_tokens_per_second=self.prefill_tokens_per_second,
            decode_tokens_per_second=self.decode_tokens_per_second,
            steps=self.steps.speed(limits, self.prefill_tokens_per_second),
        )

    def observe_layer(self, rows: int, layers: int, seconds: float) -> None:
        """Learn from rows of prompts that ran through one of a model's `layers`."""
        self.pace.observe(rows / layers, 0, seconds)

    def observe_part(self, chunks: Sequence[ScheduledChunk], share: float, seconds: float) -> None:
        """Learn from `chunks` that ran through such a `share` of the model's layers: the whole takes that much
        longer."""
        if not share:
            return
        rows = sum(len(chunk.tokens) for chunk in chunks)
        prompts = sum(len(chunk.tokens) for chunk in chunks if not chunk.decode)
        if prompts >= PREFILL_SHARE * rows:
            self._part.observe(rows * share, seconds)
        # Positions that were generated before are computed together: they say nothing of what decodes take.
        if all(chunk.sampling is not None for chunk in chunks if chunk.decode):
            self.pace.observe(prompts, rows - prompts, seconds / share)


def layers_share(blocks: range, layers: int) -> float:
    """The share of the model's layers that is among its `blocks`: the first block is the embedding, the last the
    head."""
    return len(range(max(blocks.start, 1), min(blocks.stop, layers + 1))) / layers


# What a step counts for after the next one: some hundred steps matter, so that batches of all sizes are among them.
FIT_KEPT = 0.995
LEAST_VARIANCE = 0.25  # of the sizes of batches; with less, nothing can be said of other sizes


class _Means:
    """The means of what steps had, of which the last ones count most."""

    def __init__(self, *names: str) -> None:
        self._sums = dict.fromkeys(names, 0.0)
        self.count = 0.0

    def observe(self, **values: float) -> None:
        self.count = FIT_KEPT * self.count + 1
        for name, value in values.items():
            self._sums[name] = FIT_KEPT * self._sums[name] + value

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
