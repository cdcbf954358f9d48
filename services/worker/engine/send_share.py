"""How much of its time a worker that serves spends on sending parameters. Pure: time is an argument.

Sending is work of the event loop: it wakes up, hands chunks over, and over TCP copies them. What of that happens while
a step is computed, and in its stead, is bounded by a share of the step. What shaped links or network cards carry is no
measure of it: a chunk costs the same whether the link is fast or slow.
"""

from dataclasses import dataclass

SHARE = 0.03  # caches that are cold after a chunk cost nearly as much again
SAVED_SECONDS = 0.005  # of the loop's time, for when much is to be sent at once
# However busy the worker is, a chunk leaves it so often: those that wait for it have requests to answer, too.
LONGEST_PAUSE_SECONDS = 0.05
KEPT = 0.9  # what a step counts for after the next one


@dataclass(frozen=True)
class Pause:
    """The next chunk has to wait for so many seconds."""

    seconds: float
    reason: str


class SendShare:
    """An account of the loop's processor seconds: steps earn some, what the loop takes from them is paid."""

    def __init__(self) -> None:
        self._credit = SAVED_SECONDS
        self._seen = (0.0, 0.0)
        self._step_began: float | None = None  # at so many seconds of the loop
        self._lost = 0.0
        self._used = 0.0

    def step_begins(self, now: float, loop_seconds: float) -> None:
        """Note that a step begins. `loop_seconds` of the processor were taken by the event loop so far."""
        self._settle(now, loop_seconds)
        self._step_began = loop_seconds

    def step_ends(self, now: float, loop_seconds: float, lost_seconds: float) -> None:
        """Note that the step ends. In `lost_seconds` of it its thread wanted to compute and did not."""
        self._settle(now, loop_seconds)
        if self._step_began is not None:
            self._lost = KEPT * self._lost + lost_seconds
            self._used = KEPT * self._used + loop_seconds - self._step_began
        self._step_began = None

    def pause(self, now: float, loop_seconds: float) -> Pause | None:
        """Return how long the next chunk has to wait, or None if it need not."""
        self._settle(now, loop_seconds)
        if self._step_began is None or self._credit >= 0:
            return None
        return Pause(-self._credit / SHARE, f"sending has more than {SHARE:.0%} of the time of steps")

    @property
    def is_computing(self) -> bool:
        """Whether a step is being computed. Otherwise nothing has to pause."""
        return self._step_began is not None

    @property
    def taken(self) -> float:
        """The part of a second of the loop's work that steps lose: nothing where there is a core for each."""
        return min(1.0, self._lost / self._used) if self._used else 1.0

    def _settle(self, now: float, loop_seconds: float) -> None:
        seconds, worked = now - self._seen[0], loop_seconds - self._seen[1]
        self._seen = now, loop_seconds
        # Between steps nothing is computed, and serving needs the loop: idle time then pays for what was sent.
        earned = SHARE * seconds - self.taken * worked if self.is_computing else seconds - worked
        self._credit = max(-SHARE * LONGEST_PAUSE_SECONDS, min(self._credit + earned, SAVED_SECONDS))
