"""Continuous batching: which rows run in the next step. Decodes first, then prompts, first come first served."""

from collections.abc import Iterator

from services.worker.batch import Batch, Entry, Piece
from services.worker.engine.kv_blocks import KvBlocks
from services.worker.limits import Limits
from services.worker.outputs import Output, gained
from services.worker.sequence import LateKv, Sequence
from shared.bus.contract import Refusal
from shared.invariants import check
from shared.messages.membership import EngineLoad
from shared.messages.requests import FinishReason, Running, Submit

RETRY_AFTER_MS = 100  # some engine steps


class Scheduler:
    """Requests in, batches out, one batch under way at a time.

    The order is that of priority (lower first), then of arrival. Waiting requests start in order, once there are KV
    blocks for what they have and some more; they grow as tokens come. Where two meet in a full cache, the later of the
    two is preempted: it loses its blocks, waits again, ahead of all that are later, and is computed again from its
    prompt and tokens, with the same bits. So the first in order only ever loses its place at the end of the cache, and
    then others make room for it at once: once started, it gains in every step, and so everybody ends.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._kv = KvBlocks(limits.kv_blocks)
        self._waiting: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}  # in the order they started
        self._under_way: list[tuple[Sequence, Piece]] = []
        self._preempted: list[str] = []  # since the last batch
        self._kv_full = False
        self._arrivals = 0
        self._steps = 0

    def add(self, request: Submit) -> None:
        """Take a request. Raises Refusal as `check`."""
        self.check(request)
        self.adopt(request)

    def check(self, request: Submit) -> None:
        """Raises Refusal: 400 for what can never run here, 409 for an id that is here already, 429 for one more than
        may wait."""
        if request.request_id in self:
            raise Refusal(409, f"request {request.request_id} is already here")
        reason = self.limits.why_never(request)
        if reason is not None:
            raise Refusal(400, reason)
        if len(self._all()) >= self.limits.max_num_seqs + self.limits.max_num_waiting:
            raise Refusal(429, f"{self.limits.max_num_waiting} requests are waiting here already", RETRY_AFTER_MS)

    def adopt(self, request: Submit, entry: Entry | None = None) -> LateKv | None:
        """Take a request that `check` passed. Where another worker ran layers of it, what is returned names their KV,
        which comes with `kv_came`."""
        self._arrivals += 1
        sequence = self._waiting[request.request_id] = Sequence(request, self._arrivals)
        if entry is not None:
            sequence.entry, sequence.late = entry, LateKv(entry.layer, entry.stop)
        return sequence.late

    def kv_came(self, request_id: str, late: LateKv, data: memoryview | None) -> None:
        """The KV of an adopted request's first layers; without `data` it is lost, and everything computed again."""
        sequence = self.get(request_id)
        if sequence is None or sequence.late is not late:
            return  # it ended, or lost its blocks and begins anew
        late.data = data
        if data is None and request_id in self._running:
            self._preempt(sequence)
        elif data is None:
            sequence.preempt()

    def start(self) -> list[Sequence]:
        """Give KV blocks to those that wait, without a step: whoever they are given to runs their layers elsewhere."""
        before = set(self._running)
        self._start_waiting()
        return [sequence for id, sequence in self._running.items() if id not in before]

    def get(self, request_id: str) -> Sequence | None:
        return self._waiting.get(request_id) or self._running.get(request_id)

    def is_begun(self, sequence: Sequence) -> bool:
        """Whether a step has computed of it, or does so now."""
        return sequence.computed > 0 or any(one is sequence for one, _ in self._under_way)

    def next_deadline(self) -> float | None:
        return min((sequence.request.deadline for sequence in self._all()), default=None)

    def release(self, request_id: str) -> None:
        """The request is here no more; without a word, as another worker has it."""
        if self._waiting.pop(request_id, None) is None:
            del self._running[request_id]
            self._kv.free(request_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self._running

    def running(self) -> list[Running]:
        """All that is here, waiting or running."""
        return [
            Running(request_id=one.request_id, gateway=one.request.gateway, tokens=len(one.tokens))
            for one in self._all()
        ]

    def cancel(self, request_id: str) -> Output | None:
        """End a request and free its KV at once; None where it is not here (any more)."""
        sequence = self.get(request_id)
        return None if sequence is None else self._end(sequence, "cancelled")

    def fail(self, error: str) -> list[Output]:
        """End all requests with `error`, the batch under way included: the engine's state is not to be trusted."""
        self._under_way = []
        return [self._end(sequence, "error", error=error) for sequence in self._all()]

    def next_batch(self) -> Batch | None:
        """The next step, or None when there is nothing to do. The last batch must have been completed."""
        if self._under_way:
            raise RuntimeError("a batch is under way: complete it first")
        self._grow()
        self._start_waiting()
        preempted, self._preempted = tuple(self._preempted), []
        self._under_way = sorted(self._choose(), key=lambda chosen: chosen[1].layer)
        if not self._under_way:
            return None
        self._steps += 1
        late = [sequence.lay_down(self.limits.kv_block_tokens) for sequence, _ in self._under_way]
        imports = tuple(one for one in late if one is not None)
        return Batch(self._steps, tuple(piece for _, piece in self._under_way), preempted, imports)

    def complete(self, batch: Batch, tokens: list[int], now: float) -> list[Output]:
        """Take the tokens chosen for `batch.draws`; `now` is in seconds since the epoch, as deadlines are.

        The rows for gateways: one a request that gained a token or ended.
        """
        chosen = iter(tokens)
        outputs = []
        for sequence, piece in self._under_way:
            token = None if piece.draw is None else next(chosen)
            if self._running.get(piece.request_id) is not sequence:
                continue  # cancelled meanwhile
            sequence.reach(piece.stop)
            if token is not None:
                outputs.append(self._advance(sequence, token, now))
        self._under_way = []
        return outputs + self.expire(now)

    def expire(self, now: float) -> list[Output]:
        """End whoever is past its deadline. `complete` does so as well."""
        late = [sequence for sequence in self._all() if sequence.request.deadline <= now]
        return [self._end(sequence, "deadline") for sequence in late]

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._running

    @property
    def wants_more(self) -> bool:
        """Whether nothing here is left to be prefilled, and a prompt as long as a step would find room."""
        if self._waiting or len(self._running) >= self.limits.max_num_seqs:
            return False
        prompt = self.limits.blocks(min(self.limits.max_num_batched_tokens, self.limits.max_model_len))
        has_room = self._kv.largest_gap >= min(prompt, self._kv.total)
        return has_room and all(sequence.decodes for sequence in self._running.values())

    def load(self, prefill_rate: float | None = None, decode_rate: float | None = None) -> EngineLoad:
        """What there is to do and room for; the rates, in tokens/s, are the runner's."""
        return EngineLoad(
            waiting_requests=len(self._waiting),
            waiting_tokens=sum(sequence.waiting_tokens for sequence in self._all()),
            running_requests=len(self._running),
            max_requests=self.limits.max_num_seqs,
            kv_blocks_used=self._kv.used,
            kv_blocks_total=self._kv.total,
            kv_block_tokens=self.limits.kv_block_tokens,
            kv_full=self._kv_full and bool(self._waiting),
            prefill_tokens_per_second=prefill_rate,
            decode_tokens_per_second=decode_rate,
        )

    def check_invariants(self) -> None:
        """Who runs owns its blocks and nobody else does. Raises InvariantBroken."""
        self._kv.check_invariants()
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        yield from (f"scheduler: {id} waits and runs" for id in self._waiting.keys() & self._running.keys())
        for id in self._kv.owners ^ self._running.keys():
            yield f"scheduler: {id} {'runs without' if id in self._running else 'does not run and has'} KV blocks"
        for id, sequence in self._running.items():
            if id in self._kv.owners and sequence.blocks != self._kv.owned(id):
                yield f"scheduler: {id} computes in {sequence.blocks} and owns {self._kv.owned(id)}"
            room = len(sequence.blocks) * self.limits.kv_block_tokens
            if not 0 <= sequence.computed <= min(len(sequence.tokens), room):
                yield f"scheduler: {id} has computed {sequence.computed} of {len(sequence.tokens)} tokens in {room}"
        for id, sequence in self._waiting.items():
            if sequence.computed or sequence.blocks:
                yield f"scheduler: {id} waits and has computed {sequence.computed} tokens in {sequence.blocks}"
        # A cancelled request's blocks are free while its last batch is under way; nobody may get them meanwhile.
        taken = {block for blocks in map(self._kv.owned, self._kv.owners) for block in blocks}
        for sequence, piece in self._under_way:
            if sequence.held:
                yield f"scheduler: {piece.request_id} is run, and is not to be"
            if piece.request_id not in self._running and taken & set(sequence.blocks):
                yield f"scheduler: {piece.request_id} was ended, and its blocks were given away under its batch"

    def _all(self) -> list[Sequence]:
        return [*self._running.values(), *self._waiting.values()]

    def _grow(self) -> None:
        """Whoever runs gets the block that its next token goes to."""
        size = self.limits.kv_block_tokens
        growing = [one for one in self._running.values() if len(one.tokens) > len(one.blocks) * size]
        for sequence in sorted(growing, key=_order):
            while sequence.request_id in self._running:
                met = self._kv.grow(sequence.request_id)
                if met is None:
                    sequence.blocks = self._kv.owned(sequence.request_id)
                    break
                self._preempt(max(sequence, self._running[met], key=_order))

    def _preempt(self, sequence: Sequence) -> None:
        self._kv.free(sequence.request_id)
        self._waiting[sequence.request_id] = self._running.pop(sequence.request_id)
        sequence.preempt()
        self._preempted.append(sequence.request_id)

    def _start_waiting(self) -> None:
        """Start waiting requests in order until one does not fit: a later one never overtakes it."""
        self._kv_full = False
        while len(self._running) < self.limits.max_num_seqs:
            sequence = min((one for one in self._waiting.values() if not one.held), key=_order, default=None)
            if sequence is None:
                return
            blocks = self._place(sequence)
            if blocks is None:
                self._kv_full = True
                return
            sequence.blocks = blocks
            self._running[sequence.request_id] = self._waiting.pop(sequence.request_id)

    def _place(self, sequence: Sequence) -> range | None:
        """KV blocks to start with. Nobody is preempted for one that never ran; but the first of all, once it has,
        does not wait again for those after it."""
        count, most = self.limits.blocks(len(sequence.tokens)), self.limits.most_blocks(sequence.request)
        while (blocks := self._kv.place(sequence.request_id, count, most)) is None:
            if not sequence.preempted or min(map(_order, self._running.values())) < _order(sequence):
                return None
            self._preempt(max(self._running.values(), key=_order))
        return blocks

    def _choose(self) -> Iterator[tuple[Sequence, Piece]]:
        budget = self.limits.max_num_batched_tokens
        ready = [sequence for sequence in self._running.values() if not sequence.held and not sequence.lacks_kv]
        decoding = [sequence for sequence in ready if sequence.decodes]
        prefilling = [sequence for sequence in ready if not sequence.decodes]
        for sequence in decoding + sorted(prefilling, key=_order):
            for piece in sequence.pieces(budget):
                budget -= len(piece.tokens)
                yield sequence, piece

    def _advance(self, sequence: Sequence, token: int, now: float) -> Output:
        finish_reason = sequence.append(token)
        if finish_reason is None and sequence.request.deadline <= now:
            finish_reason = "deadline"
        if finish_reason is not None:
            return self._end(sequence, finish_reason, [token])
        return gained(sequence, [token])

    def _end(
        self, sequence: Sequence, finish_reason: FinishReason, tokens: list[int] | None = None, error: str | None = None
    ) -> Output:
        self.release(sequence.request_id)
        return gained(sequence, tokens or [], finish_reason, error)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.priority, sequence.arrival
