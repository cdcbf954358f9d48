"""What the best plan of a live scale is made from: when missing layers will be here, and how long one takes. Pure."""

from collections.abc import Sequence
from itertools import accumulate


class Forecast:
    """Straight on from what was seen of this load: its pace in bytes, and the seconds a row that layers took."""

    def __init__(self, layer_bytes: Sequence[int], began: float) -> None:
        """`layer_bytes`: of each layer's blocks, in the order in which they arrive. `began`: when the load did."""
        self._ends = list(accumulate(layer_bytes))
        self._began = began
        self._seen = (0, began)  # layers that were here, and since when
        self._rows = 0
        self._seconds = 0.0

    def arrived(self, layers: int, now: float) -> None:
        """So many are here, from the first on without a gap."""
        if layers > self._seen[0]:
            self._seen = (layers, now)

    def ran(self, rows: int, seconds: float) -> None:
        """One layer of so many rows."""
        self._rows += rows
        self._seconds += seconds

    def layer_seconds(self, rows: int) -> float | None:
        """How long a layer of so many rows takes; None before any was run."""
        return rows * self._seconds / self._rows if self._seconds > 0 else None

    def ready(self, now: float) -> list[float] | None:
        """How many seconds from now each layer is here, 0 for those that are; None before any is."""
        layers, at = self._seen
        if not layers:
            return None
        seconds_per_byte = (at - self._began) / self._ends[layers - 1]
        coming = (max(0.0, self._began + end * seconds_per_byte - now) for end in self._ends[layers:])
        return [0.0] * layers + list(coming)
