"""What was measured of a model of late: its requests, and how fast its instances are. Pure."""

from collections import deque
from collections.abc import Iterable
from itertools import cycle
from statistics import median

from livescale.services.router.forecast import EngineSpeed, PastRequest
from livescale.services.router.instances import InstanceView
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
