"""Requests that were given to workers, as the router keeps them, and those that one worker begins and another is to
decode. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from livescale.services.router.queue import Waiting
from livescale.shared.policy.invariants import StateMachine


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
