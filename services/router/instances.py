"""An instance as the router sees it: the worker's last report, and what was admitted to it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from livescale.services.router.capacity import most_tokens
from livescale.services.router.queue import Waiting
from livescale.shared.messages.membership import EngineLoad, WorkerReport, WorkerState
from livescale.shared.messages.requests import Running, Submit
from livescale.shared.moves import Moves

# An instance has at most so much to prefill, and one more request: whatever waits longer may as well wait at the
# router, from where an instance that appears meanwhile can have it.
AHEAD_SECONDS = 0.5
UNMEASURED_TOKENS = 512  # where it is not known how many those are


class AdmissionState(StrEnum):
    """`asked`: a worker has not answered yet whether it takes the request. Stopped ones hold their slot until the
    worker says that they left; `stopping` is told to it once it has answered."""

    WAITING = "waiting"
    ASKED = "asked"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDED = "ended"


MOVES = Moves(
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
    """A request at a worker. `waiting` is its place in this router's queue; None where a router before this one
    admitted it."""

    gateway: str
    waiting: Waiting | None
    blocks: int
    at: float
    state: AdmissionState = AdmissionState.ASKED

    @property
    def confirmed(self) -> bool:
        """The worker took it."""
        return self.state in (AdmissionState.RUNNING, AdmissionState.STOPPED)

    @property
    def stopped(self) -> bool:
        """Nobody wants it any more."""
        return self.state in (AdmissionState.STOPPING, AdmissionState.STOPPED)

    def confirm(self) -> None:
        """Told again, it stays: a worker may have said before its answer that it runs this request."""
        if not self.confirmed:
            self.state = MOVES.advance(self.state, AdmissionState.STOPPED if self.stopped else AdmissionState.RUNNING)

    def stop(self) -> None:
        """Told again, it stays."""
        if not self.stopped:
            self.state = MOVES.advance(
                self.state, AdmissionState.STOPPED if self.confirmed else AdmissionState.STOPPING
            )


class InstanceView:
    """The leading worker (rank 0) of an instance.

    The router counts what it admitted itself, from the moment it does, and not by the report, which is behind: a slot,
    and KV blocks for the tokens a request had then. What the report shows beyond that has been generated since, or was
    admitted by a router before this one; nothing is admitted to any instance of a model before each has `learned`: said
    what it runs already. How many tokens will follow nobody knows: where they turn out too many for the KV cache the
    worker preempts, and takes nothing while somebody waits there for blocks.
    """

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.id: str | None = None
        self.epoch = 0
        self.model: str | None = None
        self.version: str | None = None
        self.state: WorkerState = "spare"
        self.admitted: dict[str, AdmittedRequest] = {}
        self.learned = False
        self.refusing = False  # it refused since its last report
        self.idle_since: float | None = None
        self.helping: frozenset[str] = frozenset()
        self.was_live = False  # others may have taken requests over from it
        self._given: set[str] = set()  # what they took before it was known what it has
        self._load: EngineLoad | None = None
        self._own_blocks = 0
        self._other_requests = 0
        self._other_blocks = 0
        self._new_tokens = 0  # to be prefilled, admitted since a report that counts them

    @property
    def serves(self) -> bool:
        """Whether it may be given requests, or was."""
        return self.state in ("serving", "live", "draining")

    def goes_on(self, report: WorkerReport) -> bool:
        """Whether the report is of the same instance, which has not gone back to loading."""
        return (report.epoch, report.instance) == (self.epoch, self.id) and not (
            self.serves and report.state == "loading"
        )

    def update(self, report: WorkerReport, now: float) -> None:
        """Take over what the worker reports."""
        self.id, self.epoch, self.state = report.instance, report.epoch, report.state
        self.model, self.version = report.model, report.version
        self.helping = frozenset(report.helping)
        self.was_live = self.was_live or report.state == "live"
        self._load = load = report.load
        self.refusing = False
        requests = 0 if load is None else load.waiting_requests + load.running_requests
        if requests >= len(self.admitted):  # else it was said before the last of them came
            self._new_tokens = 0
        blocks = 0 if load is None else load.kv_blocks_used
        self._other_requests = max(0, requests - len(self.admitted))
        self._other_blocks = max(0, blocks - self._own_blocks)
        if requests or load is None:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now

    def admit(self, waiting: Waiting, now: float) -> None:
        request = waiting.request
        self._new_tokens += waiting.tokens
        self.take(request.request_id, AdmittedRequest(request.gateway, waiting, self._need(request), now))

    def adopt(self, running: Iterable[Running], now: float) -> None:
        """Take over what a router before this one admitted."""
        self.learned = True
        for one in running:
            if one.request_id not in self.admitted and one.request_id not in self._given:
                adopted = AdmittedRequest(one.gateway, None, self._blocks(one.tokens), now, AdmissionState.RUNNING)
                self.take(one.request_id, adopted)

    def take(self, request_id: str, admission: AdmittedRequest) -> None:
        """The request is here from now on."""
        self.admitted[request_id] = admission
        self._own_blocks += admission.blocks

    def release(self, request_id: str) -> AdmittedRequest | None:
        """The request is no longer here; None if it never was."""
        admission = self.admitted.pop(request_id, None)
        self._own_blocks -= 0 if admission is None else admission.blocks
        return admission

    def give(self, request_id: str) -> AdmittedRequest | None:
        """Another worker has taken the request over; None where it is not known here. It may still be said to be here,
        in an answer that was under way."""
        if not self.learned:
            self._given.add(request_id)
        return self.release(request_id)

    def miscounted(self) -> bool:
        """Whether its blocks are not those of its requests."""
        return self._own_blocks != sum(admission.blocks for admission in self.admitted.values())

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into its KV cache."""
        return 0 if self._load is None else self._load.kv_blocks_total * self._load.kv_block_tokens

    def never_fits(self, request: Submit) -> bool:
        """Unknown room is not too little room."""
        return self._load is not None and most_tokens(request) > self.kv_tokens

    def has_room(self, request: Submit, look_ahead: int) -> bool:
        """Whether it can start there soon."""
        load = self._load
        if load is None or load.kv_full or self.never_fits(request):
            return False
        slots = load.max_requests + look_ahead - self._requests()
        blocks = load.kv_blocks_total - self._own_blocks - self._other_blocks
        return slots > 0 and self._need(request) <= blocks and self._prefills_soon(load)

    def share(self) -> tuple[float, float]:
        """How full it is: slots, then KV blocks."""
        load = self._load
        if load is None:
            return 1.0, 1.0
        blocks = self._own_blocks + self._other_blocks
        return self._requests() / max(1, load.max_requests), blocks / max(1, load.kv_blocks_total)

    def _prefills_soon(self, load: EngineLoad) -> bool:
        """Whether it has little to prefill. A live one keeps the queue from which others take."""
        tokens, rate = load.waiting_tokens + self._new_tokens, load.prefill_tokens_per_second
        most = UNMEASURED_TOKENS if rate is None else rate * AHEAD_SECONDS
        return self.state == "live" or not tokens or tokens < most

    def _need(self, request: Submit) -> int:
        """Blocks for the tokens that it has."""
        return self._blocks(len(request.prompt) + len(request.generated))

    def _blocks(self, tokens: int) -> int:
        return 0 if self._load is None else ceil(tokens / self._load.kv_block_tokens)

    def _requests(self) -> int:
        return len(self.admitted) + self._other_requests
