"""Deadlines that travel: the clocks of two machines differ, so a request brings the time it has left as well. Pure."""

from msgspec.structs import replace

from livescale.shared.messages.requests import Submit


def leaving(request: Submit, wall: float) -> Submit:
    """To be sent now: with the seconds that are left by this machine's clock."""
    return replace(request, timeout_s=max(0.0, request.deadline - wall))


def arrived(request: Submit, wall: float) -> Submit:
    """Just received: the deadline is that of the sender or what was left from now on, whichever is earlier."""
    if request.timeout_s is None:
        return request
    return replace(request, deadline=min(request.deadline, wall + request.timeout_s))
