"""Requests at the router: those that wait, in a model's queue, and those that were given to workers. Pure.

Resumed requests and those of a lower priority, which goes first, are placed in the queue as if they had come earlier.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from livescale.shared.messages.requests import PRIORITY_ARRIVALS, Submit, queue_position
from livescale.shared.policy.invariants import StateMachine

# A resumed request has been served before, so it goes first among its priority, but not before a lower one.
RESUMED_ARRIVALS = PRIORITY_ARRIVALS // 2

# Short, so that a burst is seen while it begins.
WINDOW_SECONDS = 1.0

# Requests whose early ends are remembered: workers say the last 512 again after an outage, and to a new router.
MOST_ENDED = 16_384


@dataclass(frozen=True)
class Waiting:
    """A request that waits. `arrival` numbers the requests of its model in the order in which they came, `since` is in
    seconds since the epoch, and `attempt` counts how often a worker refused it."""

    request: Submit
    arrival: int
    since: float
    attempt: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """The place in the queue; of equal places the earlier arrival goes first."""
        earlier = RESUMED_ARRIVALS if self.request.generated else 0
        return queue_position(self.arrival, self.request.priority) - earlier, self.arrival

    @property
    def tokens(self) -> int:
        """The number of tokens to prefill: the prompt, and what was generated before the request was resumed. One that
        follows another has its prompt's KV from there."""
        return 1 if self.request.follows is not None else self.all_tokens

    @property
    def all_tokens(self) -> int:
        """The number of tokens to prefill where nothing is kept of the prompt."""
        return len(self.request.prompt) + len(self.request.generated)

    def again(self) -> "Waiting":
        """The same place in the queue, for another attempt."""
        return replace(self, attempt=self.attempt + 1)


class Queue:
    """The requests of one model that wait. `tokens` is the sum of their tokens."""

    def __init__(self) -> None:
        self.tokens = 0
        self._waiting: list[Waiting] = []
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def add(self, waiting: Waiting) -> int:
        """Put a request in its place; returns how many are ahead of it."""
        insort(self._waiting, waiting, key=lambda one: one.order)
        self._ids.add(waiting.request.request_id)
        self.tokens += waiting.tokens
        return bisect_left(self._waiting, waiting.order, key=lambda one: one.order)

    def head(self) -> Waiting:
        """The request that goes next; the queue must not be empty."""
        return self._waiting[0]

    def pop(self) -> Waiting:
        """Remove and return the request that goes next; the queue must not be empty."""
        head = self._waiting[0]
        self._remove(head)
        return head

    def remove(self, request_id: str) -> Waiting | None:
        """Remove and return a request; None where it does not wait here."""
        if request_id not in self._ids:
            return None
        found = next(one for one in self._waiting if one.request.request_id == request_id)
        self._remove(found)
        return found

    def remove_if(self, unwanted: Callable[[Waiting], bool]) -> list[Waiting]:
        """Remove all requests for which `unwanted` holds, and return them in order."""
        removed = [one for one in self._waiting if unwanted(one)]
        for one in removed:
            self._remove(one)
        return removed

    def _remove(self, waiting: Waiting) -> None:
        del self._waiting[bisect_left(self._waiting, waiting.order, key=lambda one: one.order)]
        self._ids.remove(waiting.request.request_id)
        self.tokens -= waiting.tokens

    def miscounted(self) -> bool:
        """Whether the ids or the tokens differ from those of the requests."""
        ids = {one.request.request_id for one in self._waiting}
        return ids != self._ids or self.tokens != sum(one.tokens for one in self._waiting)

    def oldest_seconds(self, now: float) -> float:
        """For how long the oldest request has waited; 0 where none waits."""
        return max((now - one.since for one in self._waiting), default=0.0)

    def oldest_traceparent(self) -> str | None:
        """The trace of the request that has waited longest; None where none waits, or it is not traced."""
        oldest = min(self._waiting, key=lambda one: (one.since, one.arrival), default=None)
        return None if oldest is None else oldest.request.traceparent


class ArrivalRate:
    """How fast prompts come to a model: tokens a second, over the last `WINDOW_SECONDS`."""

    def __init__(self) -> None:
        self._came: deque[tuple[float, int]] = deque()  # when, and how many tokens

    def add(self, tokens: int, now: float) -> None:
        self._came.append((now, tokens))

    def tokens_per_second(self, now: float) -> float:
        while self._came and self._came[0][0] <= now - WINDOW_SECONDS:
            self._came.popleft()
        return sum(tokens for _, tokens in self._came) / WINDOW_SECONDS


class AdmissionState(StrEnum):
    """The states of a request at the router.

    `asked`: a worker has not yet answered whether it takes the request. `stopping` and `stopped`: the client waits no
    longer, but the request holds its slot until the worker says that it left. A worker is told to stop only once it has
    answered.
    """

    WAITING = "waiting"
    ASKED = "asked"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDED = "ended"


MOVES = StateMachine(
    "a request",
    {
        AdmissionState.WAITING: frozenset({AdmissionState.ASKED, AdmissionState.ENDED}),
        AdmissionState.ASKED: frozenset(
            {AdmissionState.RUNNING, AdmissionState.WAITING, AdmissionState.STOPPING, AdmissionState.ENDED}
        ),
        AdmissionState.RUNNING: frozenset({AdmissionState.STOPPED, AdmissionState.ENDED}),
        AdmissionState.STOPPING: frozenset({AdmissionState.STOPPED, AdmissionState.ENDED}),
        AdmissionState.STOPPED: frozenset({AdmissionState.ENDED}),
        AdmissionState.ENDED: frozenset(),
    },
)


@dataclass
class AdmittedRequest:
    """A request that was given to a worker. `waiting` is its place in this router's queue; None where an earlier router
    admitted it. `blocks` are KV blocks, `at` is in seconds since the epoch. The worker `decode` is to go on with it
    after its first token. For one that is `unpaired` nobody was named: its instance still loaded, or had another role.
    """

    gateway: str
    waiting: Waiting | None
    blocks: int
    at: float
    state: AdmissionState = AdmissionState.ASKED
    decode: str | None = None
    unpaired: bool = False

    @property
    def confirmed(self) -> bool:
        """Whether the worker has said that it took the request."""
        return self.state in (AdmissionState.RUNNING, AdmissionState.STOPPED)

    @property
    def stopped(self) -> bool:
        """Whether the client of the request waits no longer."""
        return self.state in (AdmissionState.STOPPING, AdmissionState.STOPPED)

    def confirm(self) -> None:
        """Note that the worker took the request. A second call changes nothing: before its answer, a worker may have
        said that it runs this request."""
        if not self.confirmed:
            self.state = MOVES.advance(self.state, AdmissionState.STOPPED if self.stopped else AdmissionState.RUNNING)

    def stop(self) -> None:
        """Note that the client of the request waits no longer. A second call changes nothing."""
        if not self.stopped:
            self.state = MOVES.advance(
                self.state, AdmissionState.STOPPED if self.confirmed else AdmissionState.STOPPING
            )


class Promises:
    """Requests that were given to one worker and are to be decoded by another, with the KV blocks that they need there.

    A promise ends when its request moves there, or is no longer where it was.
    """

    def __init__(self) -> None:
        self._workers: dict[str, str] = {}  # by request
        self._blocks: dict[str, dict[str, int]] = {}  # by worker that decodes, and request

    def keep(self, request_id: str, worker: str, blocks: int) -> None:
        """Count a request as on its way to this worker."""
        self._workers[request_id] = worker
        self._blocks.setdefault(worker, {})[request_id] = blocks

    def drop(self, request_id: str) -> None:
        """Forget a request, if it is on its way anywhere."""
        worker = self._workers.pop(request_id, None)
        if worker is not None:
            del self._blocks[worker][request_id]

    def requests(self, worker: str) -> int:
        """The number of requests on their way to a worker."""
        return len(self._blocks.get(worker, ()))

    def blocks(self, worker: str) -> int:
        """The number of KV blocks that they need there."""
        return sum(self._blocks.get(worker, {}).values())


class LastEnds:
    """Where the last requests ended. What is heard late of them no longer counts, until a worker has taken them
    anew."""

    def __init__(self) -> None:
        self._workers: dict[str, str] = {}  # by request

    def note(self, request_id: str, worker: str) -> None:
        """Note that a request has ended at this worker."""
        self._workers[request_id] = worker
        if len(self._workers) > MOST_ENDED:
            del self._workers[next(iter(self._workers))]

    def holds(self, request_id: str, worker: str) -> bool:
        """Whether the request has ended at this worker."""
        return self._workers.get(request_id) == worker

    def forget(self, request_id: str) -> None:
        """Note that a worker took the request, again or for the first time."""
        self._workers.pop(request_id, None)
