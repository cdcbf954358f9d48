"""A request's life at the router as a state machine: waiting -> asked -> running -> ended, stopped on the way. Pure."""

from enum import StrEnum

from livescale.shared.policy.state_machine import StateMachine


class RequestState(StrEnum):
    """`asked`: a worker has not answered yet whether it takes the request. Stopped ones hold their slot until the
    worker says that they left; `stopping` is told to it once it has answered."""

    WAITING = "waiting"
    ASKED = "asked"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDED = "ended"


MOVES = StateMachine(
    "a request",
    {
        RequestState.WAITING: frozenset({RequestState.ASKED, RequestState.ENDED}),
        RequestState.ASKED: frozenset(
            {RequestState.RUNNING, RequestState.WAITING, RequestState.STOPPING, RequestState.ENDED}
        ),
        RequestState.RUNNING: frozenset({RequestState.STOPPED, RequestState.ENDED}),
        RequestState.STOPPING: frozenset({RequestState.STOPPED, RequestState.ENDED}),
        RequestState.STOPPED: frozenset({RequestState.ENDED}),
        RequestState.ENDED: frozenset(),
    },
)
