"""A scheduler, and in place of an engine what would be in its KV cache: of each place, how its KV was made."""

from collections import deque
from typing import Any

from livescale.services.worker.scheduling.batch import PROMPT_CUT, Batch, Chosen, TokenOutput
from livescale.services.worker.scheduling.rates import DecodePace
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.requests import Submit
from tests.worker.requests import BLOCK_TOKENS, limits

Made = tuple[int, int]  # all tokens up to the place, and where the chunk ends that it attended in


def made(tokens: list[int], prompt_tokens: int) -> list[Made]:
    """The state of each position, as a request must have it. Generated positions attended one by one."""
    state, all_made = 0, []
    for position, token in enumerate(tokens):
        state = hash((state, token))
        stop = min((position // PROMPT_CUT + 1) * PROMPT_CUT, prompt_tokens)
        all_made.append((state, stop if position < prompt_tokens else position + 1))
    return all_made


class Served:
    """Every token is made of all that is in the cache of those before it; `under_way` batches were computed, and the
    scheduler has not heard of it. By `pace` prompts are cut beside decodes."""

    def __init__(self, *requests: Submit, pace: DecodePace | None = None, **fields: Any) -> None:
        self._pace = pace
        self.scheduler = Scheduler(limits(**fields))
        self.scheduler.keep_prefixes()
        self.requests: dict[str, Submit] = {}
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.batches: list[Batch] = []
        self._cache: dict[int, Made] = {}
        self._under_way: deque[tuple[Batch, Chosen]] = deque()
        for request in requests:
            self.add(request)

    def add(self, request: Submit) -> None:
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        self.tokens[request.request_id] = [*request.prompt, *request.generated]

    def begin(self, at_once: int = 1) -> bool:
        batch = self.scheduler.next_batch(at_once, self._pace)
        self.scheduler.check_invariants()
        if batch is None:
            return False
        self.batches.append(batch)
        self._under_way.append((batch, self._compute(batch)))
        return True

    def end(self) -> None:
        """End the first of the batches under way."""
        self.take(self.scheduler.complete(*self._under_way.popleft(), 0.0))
        self.scheduler.check_invariants()

    def step(self) -> Batch:
        assert self.begin()
        self.end()
        return self.batches[-1]

    def cancel(self, request_id: str) -> None:
        output = self.scheduler.cancel(request_id)
        self.take([] if output is None else [output])
        self.scheduler.check_invariants()

    def to_the_end(self) -> None:
        while self._under_way or self.begin():
            self.end()

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            row = output.row
            self.tokens[row.request_id] += row.token_ids
            self.cached[row.request_id] = row.cached_tokens
            if row.finish_reason is not None:
                self.ended[row.request_id] = row.finish_reason

    def _compute(self, batch: Batch) -> Chosen:
        for copy in batch.prefixes.copies:
            assert len(copy.source) == len(copy.target)
            assert set(copy.source).isdisjoint(copy.target)
            source, target = copy.source.start * BLOCK_TOKENS, copy.target.start * BLOCK_TOKENS
            for place in range(len(copy.source) * BLOCK_TOKENS):
                self._cache[target + place] = self._cache[source + place]
        drawn = []
        for chunk in batch.chunks:
            prompt_tokens = len(self.requests[chunk.request_id].prompt) if chunk.decode else chunk.stop
            right = made(self.tokens[chunk.request_id][: chunk.stop], prompt_tokens)
            first = chunk.blocks.start * BLOCK_TOKENS
            found = [self._cache[first + position] for position in range(chunk.start)]
            assert found == right[: chunk.start], f"{chunk.request_id}: its KV is not what it would have computed"
            self._cache |= {first + position: right[position] for position in range(chunk.start, chunk.stop)}
            if chunk.sampling is not None:
                drawn.append(right[-1][0] % 1_000)
        return Chosen(drawn)
