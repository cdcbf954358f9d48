"""What a key may ask of one gateway: requests and tokens a minute, and requests at once. Pure; `now` is in seconds.

Both rates are token buckets that refill all the time and hold at most a minute's worth.
"""

import math
from dataclasses import dataclass
from typing import Literal

import msgspec

What = Literal["requests", "tokens", "concurrency"]

MINUTE = 60.0
# An estimate, as the end of a running request is unknown.
CONCURRENCY_RETRY_SECONDS = 1.0
ROUNDING = 1e-6


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one key; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True)
class OverLimit:
    """The answer to a request that does not fit: which limit it meets, and in how many seconds it would fit."""

    what: What
    limit: int
    retry_seconds: float


class Bucket:
    """A bucket that refills with `per_minute` and holds no more. A larger amount waits for a full bucket, and what it
    takes beyond that is owed."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = -math.inf

    def level(self, now: float) -> float:
        """The amount that may be taken now; below zero while something is owed."""
        if now > self._at:
            grown = 0.0 if math.isinf(self._at) else (now - self._at) * self.per_minute / MINUTE
            self._level, self._at = min(float(self.per_minute), self._level + grown), now
        return self._level

    def seconds_until(self, amount: float, now: float) -> float:
        """Seconds until `amount`, or all that the bucket can hold, is there; 0 when it is."""
        missing = min(amount, self.per_minute) - self.level(now)
        return 0.0 if missing < ROUNDING else missing * MINUTE / self.per_minute

    def take(self, amount: float, now: float) -> None:
        """Take an amount out of the bucket; a negative amount is given back."""
        self._level = min(float(self.per_minute), self.level(now) - amount)


class Quota:
    """The limits of one key, and how much of them is used."""

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = limits
        self._requests = None if limits.requests_per_minute is None else Bucket(limits.requests_per_minute)
        self._tokens = None if limits.tokens_per_minute is None else Bucket(limits.tokens_per_minute)
        self.running = 0

    def enter(self, now: float) -> OverLimit | None:
        """Take one request, and return None; or return the limit that it meets. A request that entered must `leave`."""
        most = self._limits.max_concurrent
        if most is not None and self.running >= most:
            return OverLimit("concurrency", most, CONCURRENCY_RETRY_SECONDS)
        if self._requests is not None:
            if wait := self._requests.seconds_until(1, now):
                return OverLimit("requests", self._requests.per_minute, wait)
            self._requests.take(1, now)
        self.running += 1
        return None

    def leave(self) -> None:
        """Note that a request that entered has ended."""
        self.running -= 1

    def reserve(self, tokens: int, now: float) -> OverLimit | None:
        """Take the most tokens that a request may use, and return None; or return the limit that it meets. `settle`
        corrects the amount at the end."""
        if self._tokens is None:
            return None
        if wait := self._tokens.seconds_until(tokens, now):
            return OverLimit("tokens", self._tokens.per_minute, wait)
        self._tokens.take(tokens, now)
        return None

    def settle(self, reserved: int, used: int, now: float) -> None:
        """Give back what was reserved and not used."""
        if self._tokens is not None:
            self._tokens.take(used - reserved, now)

    def headers(self, now: float) -> list[tuple[str, str]]:
        """The headers that tell a client what is left, under OpenAI's names; `reset` is the time until a bucket is
        full."""
        buckets = (("requests", self._requests), ("tokens", self._tokens))
        return [
            (f"x-ratelimit-{what}", value)
            for name, bucket in buckets
            if bucket is not None
            for what, value in (
                (f"limit-{name}", str(bucket.per_minute)),
                (f"remaining-{name}", str(max(0, math.floor(bucket.level(now))))),
                (f"reset-{name}", duration(bucket.seconds_until(bucket.per_minute, now))),
            )
        ]


def duration(seconds: float) -> str:
    """Write seconds as OpenAI and Go do: `120ms`, `7.66s`, `6m0s`; rounded up."""
    milliseconds = math.ceil(seconds * 1000 - 1e-6)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
