"""Requests of instances that ended as planned, and of whose ends or moves this router has not heard yet. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from livescale.services.router.admitted import AdmittedRequest
from livescale.services.router.instances import InstanceView

# The word of a request's end and the report of its worker are on different subjects, so either may come first.
HEARD_SECONDS = 0.5


@dataclass
class PartedRequests:
    """Keeps each such request for `HEARD_SECONDS`. One that is not heard of by then is lost."""

    _requests: dict[str, tuple[float, str, AdmittedRequest]] = field(default_factory=dict)

    def part(self, instance: InstanceView, now: float) -> None:
        """Keep the requests of an instance that is there no more."""
        for id in sorted(instance.admitted):
            if (admission := instance.release(id)) is not None:
                self._requests[id] = now + HEARD_SECONDS, instance.worker, admission

    def take(self, request_id: str) -> AdmittedRequest | None:
        """Give up a request that was heard of; None where it is not here."""
        kept = self._requests.pop(request_id, None)
        return None if kept is None else kept[2]

    def stop(self, request_id: str) -> None:
        """Note that the client of a request waits no longer."""
        if request_id in self._requests:
            self._requests[request_id][2].stop()

    def overdue(self, now: float, is_elsewhere: Callable[[str], bool]) -> Iterator[tuple[str, str, AdmittedRequest]]:
        """Give up what was not heard of in time: yield each that runs at no other worker, with its own."""
        for id, (until, worker, admission) in list(self._requests.items()):
            if until <= now:
                del self._requests[id]
                if not is_elsewhere(id):
                    yield id, worker, admission
