"""Where conversations went: that worker may have the KV of their contexts. Pure."""

from collections import OrderedDict

from livescale.shared.messages.requests import Submit

MOST = 1 << 16  # conversations; of more, those that were quiet for longest are forgotten


class Contexts:
    """By model and id. What was forgotten, or the worker no longer has, is computed again."""

    def __init__(self) -> None:
        self._workers: OrderedDict[tuple[str, str], str] = OrderedDict()

    def went(self, request: Submit, worker: str) -> None:
        """A request goes there, or was moved there."""
        if request.context_id is None:
            return
        self._workers[request.model, request.context_id] = worker
        self._workers.move_to_end((request.model, request.context_id))
        if len(self._workers) > MOST:
            self._workers.popitem(last=False)

    def last(self, request: Submit) -> str | None:
        """Where the one before it went last."""
        return None if request.context_id is None else self._workers.get((request.model, request.context_id))
