"""A request's life at the gateway as a state machine: new -> accepted -> ended, lost on the way. Pure."""

from enum import StrEnum

from livescale.shared.policy.state_machine import StateMachine


class RequestState(StrEnum):
    """A `new` request may be refused; an `accepted` one is held or being made; a `lost` one is submitted again with the
    tokens that it has."""

    NEW = "new"
    ACCEPTED = "accepted"
    LOST = "lost"
    ENDED = "ended"


MOVES = StateMachine(
    "a request",
    {
        RequestState.NEW: frozenset({RequestState.ACCEPTED, RequestState.ENDED}),
        RequestState.ACCEPTED: frozenset({RequestState.LOST, RequestState.ENDED}),
        RequestState.LOST: frozenset({RequestState.ACCEPTED, RequestState.ENDED}),
        RequestState.ENDED: frozenset(),
    },
)
