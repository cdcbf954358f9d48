"""A request's life at the router as a state machine: waiting -> asked -> running -> ended, stopped on the way. Pure."""

from enum import StrEnum


class RequestState(StrEnum):
    """`asked`: a worker has not answered yet whether it takes the request. Stopped ones hold their slot until the
    worker says that they left; `stopping` is told to it once it has answered."""

    WAITING = "waiting"
    ASKED = "asked"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDED = "ended"


MOVES: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset({RequestState.ASKED, RequestState.ENDED}),
    RequestState.ASKED: frozenset(
        {RequestState.RUNNING, RequestState.WAITING, RequestState.STOPPING, RequestState.ENDED}
    ),
    RequestState.RUNNING: frozenset({RequestState.STOPPED, RequestState.ENDED}),
    RequestState.STOPPING: frozenset({RequestState.STOPPED, RequestState.ENDED}),
    RequestState.STOPPED: frozenset({RequestState.ENDED}),
    RequestState.ENDED: frozenset(),
}


def advance(old: RequestState, new: RequestState) -> RequestState:
    """The new state. Raises ValueError on a move that is not in the table."""
    if new not in MOVES[old]:
        raise ValueError(f"a request cannot go from {old} to {new}")
    return new
