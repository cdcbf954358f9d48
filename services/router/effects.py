"""What the router's policy wants done."""

from dataclasses import dataclass

from livescale.shared.messages.requests import FinishReason, Submit


@dataclass(frozen=True)
class AdmitTo:
    """Give the request to this worker."""

    worker: str
    epoch: int
    request: Submit
    attempt: int
    reason: str


@dataclass(frozen=True)
class FinishRequest:
    """Tell the gateway that a request that runs nowhere is over. `index`: tokens that the client has.

    `code` says whose fault an error is, with HTTP's meaning.
    """

    gateway: str
    request_id: str
    index: int
    finish_reason: FinishReason
    error: str | None
    code: int | None = None


@dataclass(frozen=True)
class Lose:
    """Tell the gateway that whoever served the request is gone."""

    gateway: str
    request_id: str
    reason: str


@dataclass(frozen=True)
class StopWork:
    """Tell the worker to stop a request that nobody wants any more."""

    worker: str
    request_id: str
    reason: str


@dataclass(frozen=True)
class Learn:
    """Ask the worker what it runs: it may have been given requests by a router before this one."""

    worker: str
    reason: str


Effect = AdmitTo | FinishRequest | Lose | StopWork | Learn
