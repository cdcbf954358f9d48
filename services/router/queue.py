"""A model's queue: by arrival, resumed requests and lower priorities as if they had come earlier. Pure."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from livescale.shared.messages.requests import Submit
from livescale.shared.policy.priority_queue import PRIORITY_ARRIVALS, queue_position

# A resumed request has been served before, so its client goes first: but not before those of a lower priority.
RESUMED_ARRIVALS = PRIORITY_ARRIVALS // 2


@dataclass(frozen=True)
class Waiting:
    """A request that waits. `arrival` numbers requests of its model in the order in which they came."""

    request: Submit
    arrival: int
    since: float
    attempt: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Its place in the line; of equal ones the earlier goes first."""
        earlier = RESUMED_ARRIVALS if self.request.generated else 0
        return queue_position(self.arrival, self.request.priority) - earlier, self.arrival

    @property
    def tokens(self) -> int:
        """Tokens that have to be prefilled."""
        return len(self.request.prompt) + len(self.request.generated)

    def again(self) -> "Waiting":
        """The same place in the queue, another attempt."""
        return replace(self, attempt=self.attempt + 1)


class Queue:
    """`tokens` is the sum over those who wait."""

    def __init__(self) -> None:
        self.tokens = 0
        self._waiting: list[Waiting] = []
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def add(self, waiting: Waiting) -> int:
        """Returns how many are ahead."""
        insort(self._waiting, waiting, key=lambda one: one.order)
        self._ids.add(waiting.request.request_id)
        self.tokens += waiting.tokens
        return bisect_left(self._waiting, waiting.order, key=lambda one: one.order)

    def head(self) -> Waiting:
        return self._waiting[0]

    def pop(self) -> Waiting:
        head = self._waiting[0]
        self._remove(head)
        return head

    def remove(self, request_id: str) -> Waiting | None:
        if request_id not in self._ids:
            return None
        found = next(one for one in self._waiting if one.request.request_id == request_id)
        self._remove(found)
        return found

    def remove_if(self, unwanted: Callable[[Waiting], bool]) -> list[Waiting]:
        """Removes and returns, in order."""
        removed = [one for one in self._waiting if unwanted(one)]
        for one in removed:
            self._remove(one)
        return removed

    def _remove(self, waiting: Waiting) -> None:
        del self._waiting[bisect_left(self._waiting, waiting.order, key=lambda one: one.order)]
        self._ids.remove(waiting.request.request_id)
        self.tokens -= waiting.tokens

    def miscounted(self) -> bool:
        """Whether its ids or its tokens are not those of its requests."""
        ids = {one.request.request_id for one in self._waiting}
        return ids != self._ids or self.tokens != sum(one.tokens for one in self._waiting)

    def oldest_seconds(self, now: float) -> float:
        return max((now - one.since for one in self._waiting), default=0.0)
