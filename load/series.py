"""Records of a load as series over time, for pictures. Times become seconds since `start`."""

from collections.abc import Iterable, Sequence

import numpy as np

from livescale.load.records import RequestRecord
from livescale.load.stats import percentile

Points = list[tuple[float, float]]


def rate_of(times: Iterable[float], start: float, end: float, width: float = 2.0) -> Points:
    """Events a second in each stretch of `width` seconds from `start` to `end`, at the stretch's middle."""
    edges = np.arange(0.0, max(width, end - start) + width, width)
    counts, _ = np.histogram([at - start for at in times], bins=edges)
    return [(float(edge + width / 2), float(count / width)) for edge, count in zip(edges[:-1], counts, strict=True)]


def ttft_points(records: Iterable[RequestRecord], start: float) -> Points:
    """Each request's TTFT at the time it was due."""
    return [(record.due - start, record.ttft) for record in records if record.ttft is not None]


def gap_points(records: Iterable[RequestRecord], start: float) -> Points:
    """Each gap between two tokens of a stream, at the time of the later one."""
    return [(at - start, gap) for record in records for at, gap in zip(record.token_at[1:], record.gaps, strict=True)]


def running_percentile(points: Sequence[tuple[float, float]], q: float, width: float = 2.0) -> Points:
    """The percentile of the points in each stretch of `width` seconds, where there are any."""
    stretches: dict[int, list[float]] = {}
    for at, value in points:
        stretches.setdefault(int(at // width), []).append(value)
    return [((slot + 0.5) * width, percentile(values, q) or 0.0) for slot, values in sorted(stretches.items())]
