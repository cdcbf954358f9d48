"""How many tokens a request may have, against the KV caches that there are. Pure."""

from msgspec.structs import replace

from livescale.shared.messages.requests import Submit


def most_tokens(request: Submit) -> int:
    """Prompt, and everything that may follow."""
    return len(request.prompt) + request.max_tokens


def fitted(request: Submit, room: int) -> Submit:
    """A request whose client named no number of tokens takes as many as there is room for, one at least."""
    if not request.open_ended or most_tokens(request) <= room:
        return request
    return replace(request, max_tokens=max(1, room - len(request.prompt)))


def never_fits(request: Submit, room: int) -> str:
    return (
        f"prompt and max_tokens need room for {most_tokens(request)} tokens; the largest instance has {room}: "
        "shorten the prompt or ask for fewer tokens"
    )
