"""What share of a model's recent requests would have been in time, had its instances had other roles. Pure.

The requests come again, when they came, to instances that work at the measured rates. Work flows evenly between
events, no step is played: a forecast from a thousand requests takes some ten milliseconds.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from math import inf

TTFT_A_TOKEN = 0.08e-3  # seconds more for each token of a prompt, as BlitzScale's authors count
SMALL = 1e-6  # of a token


@dataclass(frozen=True)
class Slos:
    """Seconds until the first token of a request, and from one token to the next on average, that are in time."""

    ttft: float
    tbt: float

    def first(self, prompt_tokens: int) -> float:
        """Seconds until the first token that a prompt of so many tokens may take."""
        return self.ttft + TTFT_A_TOKEN * prompt_tokens


DEFAULT_SLOS = Slos(1.0, 0.15)


@dataclass(frozen=True)
class PastRequest:
    """A request that came `at` this time, with so many tokens."""

    at: float
    prompt: int
    output: int


@dataclass(frozen=True)
class EngineSpeed:
    """What was measured of one instance.

    `prefill`: tokens of prompts a second, alone. A step takes `step` seconds, and `row` for each request that decodes.
    With prompts beside them it has `beside_tokens` of these, and takes `beside_seconds` longer. There is room for
    `slots` requests, and for `kv_tokens` tokens of them.
    """

    prefill: float
    step: float
    row: float
    beside_tokens: float
    beside_seconds: float
    slots: int
    kv_tokens: int

    def room(self, requests: Sequence[PastRequest]) -> int:
        """How many requests like these decode at once at most."""
        tokens = sum(one.prompt + one.output for one in requests) / len(requests)
        return max(1, min(self.slots, int(self.kv_tokens / tokens)))

    def pause(self, rows: int) -> float:
        """Seconds between two tokens where so many requests decode, and nothing else runs."""
        return self.step + self.row * rows


class _Instance:
    """An instance as work flows through it. It may have prompts, decodes, or both; `good` requests were in time."""

    def __init__(self, speed: EngineSpeed, slos: Slos, now: float) -> None:
        self._speed, self._slos, self._now = speed, slos, now
        self._prompts: deque[PastRequest] = deque()
        self._left = 0.0  # tokens of the first prompt
        self._done = 0.0  # tokens of a request that was here always
        self._ends: list[tuple[float, int, float, float]] = []  # by `_done`: how many tokens came since when
        self._count = 0
        self.good = 0

    @property
    def requests(self) -> int:
        return len(self._prompts) + len(self._ends)

    def prefill(self, request: PastRequest) -> None:
        """Take a request that came now, behind the prompts that are here."""
        self._prompts.append(request)
        if len(self._prompts) == 1:
            self._left = float(request.prompt)

    def decode(self, request: PastRequest, in_time: bool) -> None:
        """Take a request whose first token came now, in time or not. What is late already counts for its load alone."""
        self._count += 1
        tokens = request.output - 1
        if tokens < 1:
            self.good += in_time
        else:
            heappush(self._ends, (self._done + tokens, self._count, self._now, tokens if in_time else 0))

    def advance(self, until: float) -> None:
        """Let prompts and decodes flow until the time `until`."""
        while True:
            prompts, decodes = self._rates()
            first = self._left / prompts if prompts else inf
            last = (self._ends[0][0] - self._done) / decodes if self._ends else inf
            seconds = min(first, last)
            if seconds == inf or self._now + seconds > until:
                if until != inf:
                    self._flow(until - self._now, prompts, decodes)
                return
            self._flow(max(0.0, seconds), prompts, decodes)
            self._end()

    def _rates(self) -> tuple[float, float]:
        """Tokens of prompts a second, and of each request that decodes."""
        speed, rows = self._speed, len(self._ends)
        if not rows:
            return (speed.prefill if self._prompts else 0.0), 0.0
        pause = speed.pause(rows)
        if not self._prompts:
            return 0.0, 1 / pause
        longer = pause + speed.beside_seconds
        return speed.beside_tokens / longer, 1 / longer

    def _flow(self, seconds: float, prompts: float, decodes: float) -> None:
        self._now += seconds
        self._left -= prompts * seconds
        self._done += decodes * seconds

    def _end(self) -> None:
        if self._prompts and self._left <= SMALL:
            request = self._prompts.popleft()
            self._left = float(self._prompts[0].prompt) if self._prompts else 0.0
            self.decode(request, self._now - request.at <= self._slos.first(request.prompt))
        while self._ends and self._ends[0][0] - self._done <= SMALL:
            _, _, begun, tokens = heappop(self._ends)
            self.good += tokens > 0 and (self._now - begun) / tokens <= self._slos.tbt


def attainment(requests: Sequence[PastRequest], speed: EngineSpeed, slos: Slos, prefill: int, others: int) -> float:
    """The share of `requests`, in order of arrival, that are in time with so many instances that prefill and so many
    others, which decode, or do everything where none prefills."""
    first, room = requests[0].at, speed.room(requests)
    instances = [_Instance(speed, slos, first) for _ in range(others)]
    joining = _prefilled(requests, speed, slos, prefill) if prefill else ((one.at, one, None) for one in requests)
    for now, request, in_time in joining:
        for instance in instances:
            instance.advance(now)
        best = min(instances, key=lambda one: one.requests)
        if in_time is None:
            best.prefill(request)
        else:
            best.decode(request, in_time and best.requests < room)  # else who prefills decodes, beside its prompts
    for instance in instances:
        instance.advance(inf)
    return sum(instance.good for instance in instances) / len(requests)


def _prefilled(
    requests: Iterable[PastRequest], speed: EngineSpeed, slos: Slos, count: int
) -> list[tuple[float, PastRequest, bool | None]]:
    """When each request has its first token, where so many instances do nothing but prefill, in that order."""
    free = [-inf] * count
    ended = []
    for request in requests:
        now = max(request.at, free[0]) + request.prompt / speed.prefill
        heapreplace(free, now)
        ended.append((now, request, now - request.at <= slos.first(request.prompt)))
    return sorted(ended, key=lambda one: one[0])
