"""Continuous batching: requests in, steps out. Decodes go first, and prompts share what is left of a step. Pure."""

from collections.abc import Container

from livescale.services.worker.scheduling.allocation import BlockAllocation
from livescale.services.worker.scheduling.batch import (
    Batch,
    Chosen,
    KvCopy,
    LayerEntry,
    PrefixUse,
    TokenOutput,
    Withheld,
)
from livescale.services.worker.scheduling.batching import Scheduled, broken_flights, choose_chunks
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.prefix_cache import fetch_pays
from livescale.services.worker.scheduling.rates import DecodePace
from livescale.services.worker.scheduling.reservations import Reservation
from livescale.services.worker.scheduling.sequence import Filled, LateKv, Sequence, order
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.disaggregation import TakeOver
from livescale.shared.messages.membership import EngineLoad
from livescale.shared.messages.requests import FinishReason, Running, Submit, TokenLogprobs
from livescale.shared.policy.invariants import check

RETRY_AFTER_MS = 100  # some engine steps


class Scheduler:
    """Makes batches of the requests that `BlockAllocation` gives KV blocks to.

    One batch is under way at a time. In an execution pipeline there are several, of disjoint requests, each with its
    part of them. Batches are computed in order, so a block that is freed under one may be given to another request.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self._allocation = BlockAllocation(limits)
        self.reservations = self._allocation.reservations
        self._under_way: dict[int, list[Scheduled]] = {}  # by step
        self._arrivals = 0
        self._steps = 0

    def keep_prefixes(self) -> None:
        """Begin to keep prompts: the KV of all layers is here from now on."""
        self._allocation.keep_prefixes()

    def weigh_fetches(self, fetch_rate: float | None, prefill_rate: float | None) -> None:
        """Decide whether KV in host memory is fetched or computed again, by both rates in tokens per second."""
        if self._allocation.prefixes is not None:
            self._allocation.prefixes.fetches = fetch_pays(fetch_rate, prefill_rate)

    def add(self, request: Submit) -> None:
        """Take a request. Raises Refusal as `check` does."""
        self.check(request)
        self.adopt(request)

    def check(self, request: Submit) -> None:
        """Raise Refusal for a request that cannot be taken.

        400 is for one that can never run here, 409 for an id that is here already, 429 for one more than may wait.
        """
        if request.request_id in self:
            raise Refusal(409, f"request {request.request_id} is already here")
        reason = self.limits.why_never(request)
        if reason is not None:
            raise Refusal(400, reason)
        if len(self._allocation.all()) >= self.limits.max_num_seqs + self.limits.max_num_waiting:
            raise Refusal(
                429, f"{self.limits.max_num_waiting} requests already wait here; try another worker", RETRY_AFTER_MS
            )

    def adopt(self, request: Submit, entry: LayerEntry | None = None, filled: Filled | None = None) -> LateKv | None:
        """Take a request that `check` passed.

        Where another worker ran layers of it (`entry`), the result names their KV, which comes with `kv_came`. What is
        `filled` is in the cache already.
        """
        self._arrivals += 1
        sequence = self._allocation.waiting[request.request_id] = Sequence(request, self._arrivals, self.limits.encodes)
        if entry is not None:
            sequence.entry, sequence.late = entry, LateKv(entry.layer, entry.stop)
        if filled is not None:
            self._allocation.start_in(sequence, filled)
        return sequence.late

    def reserve(self, name: str, request: Submit) -> Reservation | None:
        """Keep KV blocks for a request that passed `check`. None while there is no room."""
        self._arrivals += 1
        return self._allocation.reserve(name, Sequence(request, self._arrivals, self.limits.encodes))

    def take_over(self, name: str, command: TakeOver) -> Sequence:
        """Go on with the request of a reservation, all KV of which is here. Raises ValueError."""
        return self._allocation.take_over(name, command)

    def due_copies(self) -> tuple[KvCopy, ...]:
        """The prefix cache's copies that are due before anything else is stored; they are then made."""
        return () if self._allocation.prefixes is None else self._allocation.prefixes.due_copies()

    def kv_came(self, request_id: str, late: LateKv, data: memoryview | None) -> None:
        """Take the KV of an adopted request's first layers. Without `data` it is lost, and everything is computed
        again."""
        sequence = self.get(request_id)
        if sequence is None or sequence.late is not late:
            return  # it ended, or lost its blocks and begins anew
        late.data = data
        if data is None and request_id in self._allocation.running:
            self._allocation.preempt(sequence)
        elif data is None:
            sequence.preempt()

    def start_over(self, kept: Container[str] = ()) -> None:
        """Forget everything that was computed, batches under way included. The requests in `kept` keep what is
        filled."""
        self._forget_prefixes()
        for chosen in self._under_way.values():
            _land(chosen)
        self._under_way.clear()
        for sequence in self.placed:
            if sequence.request_id in kept and sequence.filled is not None and sequence.filled.stop:
                sequence.go_on_from(sequence.filled)
            else:
                self._allocation.preempt(sequence)

    def start(self) -> list[Sequence]:
        """Give KV blocks to waiting requests, whose layers run elsewhere. Returns those that got some."""
        before = set(self._allocation.running)
        self._allocation.start()
        return [sequence for id, sequence in self._allocation.running.items() if id not in before]

    @property
    def placed(self) -> list[Sequence]:
        """The requests that have KV blocks, in the order in which they started."""
        return list(self._allocation.running.values())

    @property
    def in_order(self) -> list[Sequence]:
        """All requests, waiting and running, the first in line first."""
        return sorted(self._allocation.all(), key=order)

    def get(self, request_id: str) -> Sequence | None:
        return self._allocation.get(request_id)

    def is_begun(self, sequence: Sequence) -> bool:
        """Whether a step has computed a part of the request, or does so now."""
        return sequence.computed > 0 or sequence.in_flight

    def next_deadline(self) -> float | None:
        """The earliest deadline of all requests, in seconds since the epoch; None without requests."""
        return min((sequence.request.deadline for sequence in self._allocation.all()), default=None)

    def release(self, request_id: str) -> None:
        """Forget a request that another worker has, without a message."""
        self._allocation.release(request_id)

    def __contains__(self, request_id: str) -> bool:
        return self._allocation.get(request_id) is not None

    def running(self) -> list[Running]:
        """All requests, waiting or running, as they are reported."""
        return [
            Running(request_id=one.request_id, gateway=one.request.gateway, tokens=len(one.tokens))
            for one in self._allocation.all()
        ]

    def cancel(self, request_id: str) -> TokenOutput | None:
        """End a request and free its KV at once. None where it is not here."""
        sequence = self.get(request_id)
        return None if sequence is None else self._end(sequence, "cancelled")

    def lose_adapter(self, version: str) -> None:
        """Note that an adapter has gone, and no request that runs uses it."""
        if self._allocation.contexts is not None:
            self._allocation.contexts.lose_adapter(version)

    def fail(self, error: str) -> list[TokenOutput]:
        """End all requests with `error`, those under way included: the engine's state cannot be trusted."""
        self._under_way.clear()
        self._forget_prefixes()
        self.reservations.drop_all(error)
        return [self._end(sequence, "error", error=error) for sequence in self._allocation.all()]

    def next_batch(self, at_once: int = 1, pace: DecodePace | None = None) -> Batch | None:
        """The next step, or None when there is nothing to do.

        Fewer than `at_once` batches may be under way. Each gets an even part of the requests, so that there is
        something for all. `pace` limits prompts, so that they do not hold decodes up; without it nothing does.
        """
        if len(self._under_way) >= at_once:
            raise RuntimeError(f"{len(self._under_way)} batches are under way, {at_once} may be: complete one first")
        self._allocation.grow()
        self._allocation.start()
        preempted = self._allocation.preempted()
        chosen = sorted(choose_chunks(self._allocation, self._under_way, at_once, pace), key=lambda one: one[1].layer)
        if not chosen:
            return None
        self._steps += 1
        self._under_way[self._steps] = chosen
        for sequence, _ in chosen:
            sequence.in_flight = True
        late = [sequence.lay_down(self.limits.kv_block_tokens) for sequence, _ in chosen]
        imports = tuple(one for one in late if one is not None)
        prefixes = PrefixUse() if self._allocation.prefixes is None else self._allocation.prefixes.use()
        return Batch(self._steps, tuple(chunk for _, chunk in chosen), preempted, imports, prefixes)

    def complete(self, batch: Batch, chosen: Chosen, now: float) -> list[TokenOutput]:
        """Take what was chosen for `batch.samplings`. `now` is in seconds since the epoch, as deadlines are.

        Returns the rows for gateways: one for each request that gained a token or ended.
        """
        tokens_of, outputs = enumerate(chosen.tokens), []
        scheduled = self._under_way.pop(batch.step)
        _land(scheduled)
        for number, (sequence, chunk) in enumerate(scheduled):
            place, token = (0, None) if chunk.sampling is None else next(tokens_of)
            why = None if token is None else chosen.withheld.get(place)
            if not self._allocation.computed(sequence, chunk, again=why is not None):
                continue
            sequence.scored(chunk.start, chosen.prompts.get(number, ()))
            if why is not None:
                outputs += self.give_up(sequence, why)
            elif token is not None:
                outputs.append(self._advance(sequence, token, chosen.logprobs.get(place), now))
        return outputs + self.expire(now)

    def give_up(self, sequence: Sequence, why: Withheld) -> list[TokenOutput]:
        """End a sequence, if it is still here and there is a reason."""
        is_here = self.get(sequence.request_id) is sequence
        return [self._end(sequence, "error", error=why.reason, code=why.code)] if why.reason and is_here else []

    def expire(self, now: float) -> list[TokenOutput]:
        """End all requests that are past their deadline. `complete` does so, too."""
        if self._allocation.contexts is not None:
            self._allocation.contexts.expire(now)
        late = [sequence for sequence in self._allocation.all() if sequence.request.deadline <= now]
        return [self._end(sequence, "deadline") for sequence in late]

    @property
    def is_empty(self) -> bool:
        return not self._allocation.all() and not self.reservations

    @property
    def waiting(self) -> int:
        """The number of requests without KV blocks."""
        return len(self._allocation.waiting)

    def wants_more(self, ending: Batch | None = None) -> bool:
        """Whether there is nothing left to prefill, and room for a prompt as long as a step.

        Prompts that end in the step `ending` count as prefilled.
        """
        prefilled = set[str]() if ending is None else {chunk.request_id for chunk in ending.chunks if chunk.sampling}
        running, kv = self._allocation.running.values(), self._allocation.kv
        if self._allocation.waiting or len(running) >= self.limits.max_num_seqs:
            return False
        prompt = self.limits.blocks(min(self.limits.max_num_batched_tokens, self.limits.max_model_len))
        return kv.largest_gap >= min(prompt, kv.total) and all(
            sequence.decodes or sequence.request_id in prefilled for sequence in running
        )

    def load(self) -> EngineLoad:
        """What there is to do and room for. The rates are the runner's, and left out."""
        return self._allocation.load()

    def check_invariants(self) -> None:
        """Check that running requests own their blocks, and that no two batches share a request. Raises
        InvariantBroken."""
        self._allocation.check_invariants()
        check(broken_flights(self._under_way, self._allocation))

    def _forget_prefixes(self) -> None:
        if self._allocation.contexts is not None:
            self._allocation.contexts.clear()

    def _advance(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None, now: float) -> TokenOutput:
        late: FinishReason | None = "deadline" if sequence.request.deadline <= now else None
        finish_reason = sequence.append(token, logprobs) or late
        if finish_reason is not None:
            return self._end(sequence, finish_reason, [token])
        return sequence.output([token])

    def _end(
        self,
        sequence: Sequence,
        finish_reason: FinishReason,
        tokens: list[int] | None = None,
        error: str | None = None,
        code: int | None = None,
    ) -> TokenOutput:
        if self._allocation.contexts is not None and finish_reason != "error":
            self._allocation.contexts.end(sequence)
        self.release(sequence.request_id)
        return sequence.output(tokens or [], finish_reason, error, code)


def _land(chosen: list[Scheduled]) -> None:
    for sequence, _ in chosen:
        sequence.in_flight = False
