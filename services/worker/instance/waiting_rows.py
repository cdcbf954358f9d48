"""Which tokens leave a worker now, and which with those of the next steps. Pure: time is an argument.

A frame wakes the bus's server, a gateway and a client. Where steps are shorter than that takes, these would take the
processor from them for each token, though nobody can tell tokens apart that are made within three milliseconds.
"""

from collections.abc import Iterator

from livescale.shared.messages.requests import Tokens

# The time between two frames to a gateway. First and last tokens, and all that is large, do not wait.
FRAME_SECONDS = 0.003


class WaitingRows:
    """Rows of tokens that have not left yet, by gateway, in the order in which they were made."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Tokens]] = {}
        self._urgent: set[str] = set()  # gateways that one of the rows is for which must not wait
        self._left: dict[str, float] = {}  # by gateway, when the last frame left, if it was a moment ago

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def add(self, gateway: str, row: Tokens) -> None:
        """Have a row leave with the next frame to its gateway."""
        self._rows.setdefault(gateway, []).append(row)
        if _is_urgent(row):
            self._urgent.add(gateway)

    def take_due(self, now: float) -> Iterator[tuple[str, list[Tokens]]]:
        """The rows that have to leave now, by gateway. They wait no longer."""
        self._left = {gateway: at for gateway, at in self._left.items() if now - at < FRAME_SECONDS}
        for gateway in list(self._rows):
            if gateway in self._urgent or gateway not in self._left:
                yield gateway, self._take(gateway, now)

    def take_all(self, now: float) -> Iterator[tuple[str, list[Tokens]]]:
        """All rows, by gateway. They wait no longer."""
        for gateway in list(self._rows):
            yield gateway, self._take(gateway, now)

    def _take(self, gateway: str, now: float) -> list[Tokens]:
        self._left[gateway] = now
        self._urgent.discard(gateway)
        return self._rows.pop(gateway)


def is_large(row: Tokens) -> bool:
    """Whether a row may be half of what the bus takes at once: what is told of a prompt, or made of it."""
    return bool(row.prompt_logprobs or (row.logprobs and any(told.pooled for told in row.logprobs)))


def _is_urgent(row: Tokens) -> bool:
    return row.index == 0 or not row.token_ids or bool(row.logprobs) or row.finish_reason is not None
