"""Which instances of a model prefill and which decode, with `--disaggregation auto`: the split by which most of its
recent requests would have been in time, or no split. What was measured of late is kept here, too. Pure; `now` is in
seconds since the epoch.

A split is the number of instances that prefill while the others decode; it is 0 where all do both. Forecasts are made
one a round, so that no round takes long.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median

from livescale.services.router.effects import AssignRole
from livescale.services.router.forecast import EngineSpeed, PastRequest, Slos, attainment
from livescale.services.router.instances import InstanceView
from livescale.shared.messages.membership import Role
from livescale.shared.messages.requests import Submit

WINDOW_SECONDS = 60.0
MOST_REQUESTS = 600  # as a forecast takes longer with each
LEAST_REQUESTS = 50  # fewer say nothing of those to come
LEAST_OUTPUTS = 30
LEAST_SECONDS = 5.0  # shorter, and no queue would have grown long; longer, and one that has takes as long to clear


class RecentRequests:
    """The last requests of a model: those that came, and how many tokens those had that ended."""

    def __init__(self) -> None:
        self._came: deque[tuple[float, int]] = deque(maxlen=MOST_REQUESTS)
        self._outputs: deque[int] = deque(maxlen=MOST_REQUESTS)
        self.has_forgotten = False  # until then these are all that ever came

    def came(self, request: Submit, now: float) -> None:
        """Note when a request came, and how long its prompt is."""
        self.has_forgotten |= len(self._came) == MOST_REQUESTS
        self._came.append((now, len(request.prompt)))

    def ended(self, tokens: int) -> None:
        """Note that a request ended after so many tokens."""
        self._outputs.append(tokens)

    def requests(self, now: float) -> list[PastRequest]:
        """The last requests in order; none where they are too few. Which of them had how many tokens is left to
        chance: most have not ended yet, and those that have are the short ones."""
        while self._came and self._came[0][0] <= now - WINDOW_SECONDS:
            self._came.popleft()
            self.has_forgotten = True
        if len(self._came) < LEAST_REQUESTS or len(self._outputs) < LEAST_OUTPUTS:
            return []
        if len(self._came) < MOST_REQUESTS and self._came[-1][0] - self._came[0][0] < LEAST_SECONDS:
            return []
        paired = zip(self._came, cycle(self._outputs), strict=False)
        return [PastRequest(at, max(1, prompt), output) for (at, prompt), output in paired]


def speed_of(instances: Iterable[InstanceView]) -> EngineSpeed | None:
    """The medians of what these instances measured of themselves; None where none of them did."""
    measured = [(one.load, one.load.steps) for one in instances if one.load is not None and one.load.steps is not None]
    if not measured:
        return None
    loads, steps = [load for load, _ in measured], [one for _, one in measured]
    return EngineSpeed(
        prefill=median(one.prompt_tokens_per_second for one in steps),
        step=median(one.step_seconds for one in steps),
        row=median(one.row_seconds for one in steps),
        beside_tokens=median(one.beside_tokens for one in steps),
        beside_seconds=median(one.beside_seconds for one in steps),
        slots=min(load.max_requests for load in loads),
        kv_tokens=min(load.kv_blocks_total * load.kv_block_tokens for load in loads),
    )


ROUND_SECONDS = 0.1
EVALUATE_SECONDS = 5.0
EARLY_SECONDS = 1.0  # the same, as long as every request that ever came counts: each second changes much then
# What a forecast counts for beside those before it, so that a burst alone changes nothing. As long as every request
# that ever came counts, it knows what those knew and more, and counts alone.
NEWEST = 0.5
MARGIN = 0.03  # of all requests, that more of them must be in time
DWELL_SECONDS = 15.0  # from one change to the next where that is all there is to gain
ORDER_SECONDS = 1.0  # between two orders to one worker: its report has to come first
MOST_SPLITS = 16


@dataclass
class ModelMode:
    """What is known of one model: its recent requests, the split that is `wanted`, why it was chosen (empty where it
    was found), and what share of the requests each split would have had in time."""

    recent: RecentRequests = field(default_factory=RecentRequests)
    wanted: int | None = None
    reason: str = ""
    forecasts: dict[int, float] = field(default_factory=dict)
    _instances: int = 0
    _changed: float = 0.0
    _begun: float = 0.0
    _round: list[int] = field(default_factory=list)  # splits that are still to be weighed
    _requests: list[PastRequest] = field(default_factory=list)
    _speed: EngineSpeed | None = None
    _ordered: dict[str, float] = field(default_factory=dict)

    def tick(self, serving: Sequence[InstanceView], slos: Slos, now: float) -> list[AssignRole]:
        """Weigh one split more, change to a better one if it is time, and return what is left to order."""
        count = len(serving)
        if count != self._instances:
            self._instances, self._round, self.forecasts = count, [], {}
            self._begun = self._changed = -EVALUATE_SECONDS  # others may be right at once
        if self.wanted is None and count:  # an earlier router may have set roles
            self.wanted = sum(one.role == "prefill" for one in serving)
        if not count or self.wanted is None:
            return []
        self._weigh(serving, slos, now)
        wanted = min(self.wanted, count - 1)
        roles = assign(serving, wanted)
        late = [one for one in serving if one.role != roles[one.worker]]
        due = [one for one in late if now - self._ordered.get(one.worker, 0.0) >= ORDER_SECONDS]
        self._ordered.update((one.worker, now) for one in due)
        return [AssignRole(one.worker, roles[one.worker], self.reason or "as others have their roles") for one in due]

    def _weigh(self, serving: Sequence[InstanceView], slos: Slos, now: float) -> None:
        is_early = not self.recent.has_forgotten
        if not self._round:
            if now - self._begun < (EARLY_SECONDS if is_early else EVALUATE_SECONDS):
                return
            self._requests, self._speed = self.recent.requests(now), speed_of(serving)
            if not self._requests or self._speed is None:
                return
            self._begun, self._round = now, splits(len(serving), self.wanted or 0)
        split, speed = self._round.pop(), self._speed
        assert speed is not None
        found = attainment(self._requests, speed, slos, split, len(serving) - split)
        known = self.forecasts.get(split, found)
        self.forecasts[split] = known + (1.0 if is_early else NEWEST) * (found - known)
        if not self._round:
            self._choose(len(serving), now)

    def _choose(self, count: int, now: float) -> None:
        current = min(self.wanted or 0, count - 1)
        best = best_split(self.forecasts, current)
        gain = self.forecasts[best] - self.forecasts.get(current, 0.0)
        if best == current or not is_due(gain, now - self._changed):
            return
        self.reason = (
            f"{describe(best, count)}: {self.forecasts[best]:.0%} of the last {len(self._requests)} requests would "
            f"have been in time, {self.forecasts.get(current, 0.0):.0%} with {describe(current, count)}"
        )
        self.wanted, self._changed = best, now


def is_due(gain: float, seconds: float) -> bool:
    """Whether another split is worth it, so many `seconds` after the last change: the more is to gain, the sooner."""
    return gain * seconds >= MARGIN * DWELL_SECONDS


def best_split(forecasts: Mapping[int, float], current: int) -> int:
    """The split to change to, or the current one where no other has enough more requests in time.

    Of those that are about as good the one is best whose neighbours are: the load that comes is not that of the
    forecast, and one step beside what is right may be all that is wrong.
    """
    now = forecasts.get(current, 0.0)
    least = max(max(forecasts.values()) - MARGIN, now + MARGIN)
    good = [split for split, share in forecasts.items() if share >= least]

    def robust(split: int) -> tuple[float, float]:
        return sum(forecasts.get(other, 0.0) for other in (split - 1, split + 1)), forecasts[split]

    return max(good, key=robust, default=current)


def describe(split: int, count: int) -> str:
    """Say how many of `count` instances prefill, for logs and for operators."""
    return f"{split} of {count} prefill" if split else f"all {count} do both"


def splits(count: int, current: int) -> list[int]:
    """The splits of so many instances that are worth a look: all of them, or where they are many some of each size and
    those beside the current one."""
    if count <= MOST_SPLITS:
        return list(range(count))
    spread = {round(step * (count - 1) / (MOST_SPLITS - 1)) for step in range(MOST_SPLITS)}
    return sorted(spread | {max(0, current - 1), min(current, count - 1), min(current + 1, count - 1)})


def assign(serving: Sequence[InstanceView], prefill: int) -> Mapping[str, Role]:
    """The role of each instance, so that this many prefill. Those that do so already stay, then come those with the
    fewest KV blocks in use, which have least left to decode."""
    if not prefill:
        return {one.worker: "colocated" for one in serving}
    line = sorted(serving, key=lambda one: (one.role != "prefill", one.role == "decode", one.share()[1], one.worker))
    return {one.worker: "prefill" if place < prefill else "decode" for place, one in enumerate(line)}
