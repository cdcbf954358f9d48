"""Notices that nothing comes: one timer for a whole stream, set anew when it fires and not with every token."""

import asyncio
from collections.abc import Callable


class Silence:
    """`on_silence` is called for every `seconds` in which somebody waits in vain; `close` it."""

    def __init__(self, seconds: float, on_silence: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer = self._loop.call_later(seconds, self._look)

    def begin(self) -> None:
        """Somebody waits from now on."""
        self._since = self._loop.time()

    def end(self) -> None:
        """Nobody waits."""
        self._since = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now, left = self._loop.time(), self._seconds
        if self._since is not None:
            left = self._since + self._seconds - now
        if left <= 0:
            self._since, left = now, self._seconds
            self._on_silence()
        self._timer = self._loop.call_later(left, self._look)
