"""A request in the queue of a worker that still loads."""

from dataclasses import dataclass

from livescale.services.worker.engine.contract import Partial
from livescale.services.worker.scheduling.batch import MAX_BATCH_ROWS, Entry
from livescale.services.worker.scheduling.sequence import Filled, Sequence


@dataclass(eq=False)
class Request:
    """`partial`: its rows, once a layer was run of them or is. `filled`: where whoever is to have it has KV of it."""

    sequence: Sequence
    partial: Partial | None = None
    filled: Filled | None = None

    @property
    def rows(self) -> int:
        return len(self.sequence.tokens)

    def begun(self) -> Partial:
        """Its rows, to run the next layer of them."""
        if self.partial is None:
            self.partial = Partial(list(self.sequence.rest(MAX_BATCH_ROWS)))
        return self.partial

    def reach(self) -> None:
        """A layer more is done: from here a step, or a source, would go on."""
        partial = self.begun()
        self.sequence.entry = Entry(partial.done, self.rows, partial.activation)
