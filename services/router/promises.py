"""Requests that one worker begins and another is to decode: what they will take there. Pure."""


class Promises:
    """Requests that were given to one worker and are to be decoded by another, with the KV blocks that they need there.

    A promise ends when its request moves there, or is no longer where it was.
    """

    def __init__(self) -> None:
        self._workers: dict[str, str] = {}  # by request
        self._blocks: dict[str, dict[str, int]] = {}  # by worker that decodes, and request

    def keep(self, request_id: str, worker: str, blocks: int) -> None:
        """Count a request as on its way to this worker."""
        self._workers[request_id] = worker
        self._blocks.setdefault(worker, {})[request_id] = blocks

    def drop(self, request_id: str) -> None:
        """Forget a request, if it is on its way anywhere."""
        worker = self._workers.pop(request_id, None)
        if worker is not None:
            del self._blocks[worker][request_id]

    def requests(self, worker: str) -> int:
        """The number of requests on their way to a worker."""
        return len(self._blocks.get(worker, ()))

    def blocks(self, worker: str) -> int:
        """The number of KV blocks that they need there."""
        return sum(self._blocks.get(worker, {}).values())
