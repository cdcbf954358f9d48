"""The clock and fresh ids, which actors get from outside so that tests can replace them."""

import asyncio
import os
import secrets
import time
from collections import Counter
from typing import Protocol

ID_BYTES = 6


def seconds_away(loop: asyncio.AbstractEventLoop) -> float:
    """How many seconds the loop's time is behind the machine's, because its process slept; 0 for most loops."""
    seconds: float = getattr(loop, "away", 0.0)
    return seconds


def own_pid() -> int:
    """The id of this process, or of the simulated one that the caller runs in, where the running loop has such."""
    pid: int | None = getattr(asyncio.get_running_loop(), "pid", None)
    return os.getpid() if pid is None else pid


class Clock(Protocol):
    """`now()` never goes back and is for durations; `wall()` is seconds since the epoch, for what others read.

    `away`: seconds that this process has slept, stopped or its machine without a processor. `now()` leaves them out.
    """

    @property
    def away(self) -> float: ...

    def now(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's clock, for tools and tests that do not judge whether others are silent."""

    away = 0.0

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class RunningClock:
    """The clock of a process: the time of the event loop that it is made in. Any thread may ask for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # asking for it each time is a system call
        self._can_be_away = hasattr(self._loop, "away")

    @property
    def away(self) -> float:
        seconds: float = self._loop.away if self._can_be_away else 0.0  # type: ignore[attr-defined]
        return seconds

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return time.time()


class Ids(Protocol):
    """Makes fresh ids, which match `[a-z0-9-]+`, and secrets."""

    def new(self, prefix: str) -> str: ...

    def secret(self) -> bytes: ...


class RandomIds:
    """Makes ids that are unique everywhere, and secrets of 32 bytes that cannot be guessed."""

    def new(self, prefix: str) -> str:
        return f"{prefix}-{os.urandom(ID_BYTES).hex()}"

    def secret(self) -> bytes:
        return secrets.token_bytes(32)


class CountedIds:
    """Ids that are the same in every run: `req-1`, `req-2`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def new(self, prefix: str) -> str:
        self._counts[prefix] += 1
        return f"{prefix}-{self._counts[prefix]}"

    def secret(self) -> bytes:
        return self.new("secret").encode()
