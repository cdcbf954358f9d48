"""What a call to a worker that failed means: to the policy as a status of HTTP, and to a client in words."""

from livescale.shared.bus.contract import BusError, Refusal, TooLarge


def code_of(error: BusError) -> int:
    """The HTTP status of a failed admission. A worker that could not be reached may be reached later (503); a request
    that is too large for a message never fits (413)."""
    if isinstance(error, Refusal):
        return error.code
    return 413 if isinstance(error, TooLarge) else 503


def told(error: BusError) -> str:
    """The reason of a failed admission in a client's words, without subjects of the bus."""
    return (
        error.message if isinstance(error, Refusal) else "the request is too large to be sent to a worker; shorten it"
    )
