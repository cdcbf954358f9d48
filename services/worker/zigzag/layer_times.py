"""Weights of unequal batches (BlitzScale 5.4): how long a layer takes, by the rows of the batch, as measured. Pure."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise


class LayerTimes:
    """Straight lines between what was measured, and on in the direction of the last two points."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """Seconds of one layer by rows. Raises ValueError for less than two points, and where more rows are faster."""
        points = sorted(seconds.items())
        if len(points) < 2 or points[0][0] < 1:
            raise ValueError(f"layer times of {sorted(seconds)} rows: at least two sizes from 1 on are needed")
        for (rows, less), (more_rows, more) in pairwise(points):
            if not 0 < less <= more:
                raise ValueError(f"layer times: {less} s for {rows} rows and {more} s for {more_rows}")
        self._rows = [rows for rows, _ in points]
        self._seconds = [each for _, each in points]

    def seconds(self, rows: int) -> float:
        """One layer of a batch of so many rows. Below the first point it is that of the first point."""
        if rows <= self._rows[0]:
            return self._seconds[0]
        upper = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        (low, high), (less, more) = self._rows[upper - 1 : upper + 1], self._seconds[upper - 1 : upper + 1]
        return less + (more - less) * (rows - low) / (high - low)
