"""The effects of the router's policy: what the router does for each of its decisions."""

from dataclasses import dataclass, field

from livescale.services.router.requests import Waiting
from livescale.shared.messages.membership import Role
from livescale.shared.messages.requests import FinishReason, Submit


@dataclass(frozen=True)
class AdmitTo:
    """Give the request to this worker, if it still has this `epoch`. `attempt` counts how often a worker refused the
    request before, and `reason` says why this worker was chosen.

    The request has waited here since `since`, in seconds since the epoch; where it came before this worker took any
    requests, for the scale named `scale`. The worker `decode` is to go on with it after its first token.
    """

    worker: str
    epoch: int
    request: Submit
    attempt: int
    reason: str
    since: float
    scale: str | None = None
    decode: str | None = None


@dataclass(frozen=True)
class FinishRequest:
    """Tell the gateway that a request without a worker is over. `index` is the number of tokens that the client has.
    `code` is an HTTP status, which separates client errors from failures of the system. `waiting` is the place that it
    had in the queue."""

    gateway: str
    request_id: str
    index: int
    finish_reason: FinishReason
    error: str | None
    code: int | None = None
    waiting: Waiting | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Lose:
    """Tell the gateway that the worker that served the request is gone, so that it submits the request again."""

    gateway: str
    request_id: str
    reason: str


@dataclass(frozen=True)
class StopWork:
    """Tell the worker to stop a request whose client waits no longer."""

    worker: str
    request_id: str
    reason: str


@dataclass(frozen=True)
class Learn:
    """Ask the worker what it runs, as an earlier router may have given it requests."""

    worker: str
    reason: str


@dataclass(frozen=True)
class AssignRole:
    """Have the planner give the instance that this worker leads another role."""

    worker: str
    role: Role
    reason: str


@dataclass(frozen=True)
class MoveRequest:
    """Have the worker, if it still has this `epoch`, hand a request over to the worker `decode`, for this `reason`."""

    worker: str
    epoch: int
    request_id: str
    decode: str
    reason: str


Effect = AdmitTo | FinishRequest | Lose | StopWork | Learn | AssignRole | MoveRequest


def finish(waiting: Waiting, reason: FinishReason, error: str | None = None, code: int | None = None) -> FinishRequest:
    """Tell the gateway that this request, which waits here, is over."""
    request = waiting.request
    return FinishRequest(
        request.gateway, request.request_id, len(request.generated), reason, error, code, waiting=waiting
    )
