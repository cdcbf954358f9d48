"""How fast prompts come to a model. Pure."""

from collections import deque

# Short, for a burst is to be seen while it begins.
WINDOW_SECONDS = 1.0


class Arrivals:
    """Tokens a second, over the last `WINDOW_SECONDS`."""

    def __init__(self) -> None:
        self._came: deque[tuple[float, int]] = deque()  # when, and how many tokens

    def add(self, tokens: int, now: float) -> None:
        self._came.append((now, tokens))

    def tokens_per_second(self, now: float) -> float:
        while self._came and self._came[0][0] <= now - WINDOW_SECONDS:
            self._came.popleft()
        return sum(tokens for _, tokens in self._came) / WINDOW_SECONDS
