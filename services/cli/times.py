"""Moments as people read them."""

from datetime import UTC, datetime


def clock_time(at: float) -> str:
    """The local time of a moment in seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
