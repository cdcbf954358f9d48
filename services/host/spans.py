"""What a host read from disk for a scale, as a span of the scale's trace."""

from livescale.services.host.cache import Held
from livescale.shared.process.spans import TimedSpan


def read_span(held: Held, began: float, ended: float, source: str, error: str | None) -> TimedSpan:
    """From the moment that a version had its turn at the disk until it was in memory, in seconds since the epoch.

    `source` says in which form it lay there.
    """
    return TimedSpan(
        "read",
        began,
        ended,
        {
            "gen_ai.request.model": held.model,
            "livescale.read.bytes": held.size_bytes,
            "livescale.read.blocks": held.total,
            "livescale.read.source": source,
        },
        error=None if error is None else "failed",
    )
