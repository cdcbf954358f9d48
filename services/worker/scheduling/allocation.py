"""Block allocation and preemption: requests get KV blocks in order, grow, and give way where two meet. Pure."""

from collections.abc import Iterator

from livescale.services.worker.kv.block_manager import BlockManager
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.prefix_cache import PrefixCache
from livescale.services.worker.scheduling.reservations import Reservation, Reservations
from livescale.services.worker.scheduling.sequence import Filled, Sequence, order
from livescale.services.worker.scheduling.session_cache import SessionCache
from livescale.shared.messages.disaggregation import TakeOver
from livescale.shared.messages.membership import EngineLoad
from livescale.shared.policy.invariants import check


class BlockAllocation:
    """The requests that wait and those that run in KV blocks.

    Waiting requests start in order, once there are KV blocks for their tokens and some more; they grow as tokens come.
    Where two meet in a full cache, the later one is preempted: it loses its blocks and waits again, ahead of all that
    came later. It is computed again from its prompt and tokens, with the same bits. The first in order loses its place
    only at the end of the cache, and then others make room for it at once. So once started it gains in every step, and
    every request ends.

    A request in a batch under way keeps its blocks. One that needs them waits, and runs in a later batch.
    `reservations` are for requests that are neither: they give way to any that could run.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.kv = BlockManager(limits.kv_blocks)
        self.prefixes: PrefixCache | None = None
        self.contexts: SessionCache | None = None
        self.waiting: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}  # in the order they started
        self.reservations = Reservations(self.kv)
        self.kv_full = False
        self._preempted: list[str] = []

    def keep_prefixes(self) -> None:
        """Begin to keep what is computed of prompts, for prompts that begin the same. The KV of all layers is here from
        now on."""
        if self.prefixes is None and self.limits.keeps_prefixes:
            self.prefixes = PrefixCache(self.kv, self.limits.kv_block_tokens, self.limits.host_kv_blocks)
            self.contexts = SessionCache(self.prefixes, self.limits)

    def all(self) -> list[Sequence]:
        return [*self.running.values(), *self.waiting.values()]

    def get(self, request_id: str) -> Sequence | None:
        return self.waiting.get(request_id) or self.running.get(request_id)

    def load(self) -> EngineLoad:
        """What there is to do and room for. The rates are the runner's, and left out."""
        return EngineLoad(
            waiting_requests=len(self.waiting),
            waiting_tokens=sum(sequence.waiting_tokens for sequence in self.all()),
            running_requests=len(self.running),
            max_requests=self.limits.max_num_seqs,
            kv_blocks_used=self.kv.used,
            kv_blocks_total=self.kv.total,
            kv_block_tokens=self.limits.kv_block_tokens,
            kv_full=self.kv_full and bool(self.waiting),
            reserved_requests=len(self.reservations),
            reserved_blocks=self.reservations.blocks,
            keeps_prefixes=self.prefixes is not None,
        )

    def release(self, request_id: str) -> None:
        """Forget a request that is here, waiting or running, and free its blocks."""
        if self.waiting.pop(request_id, None) is None:
            del self.running[request_id]
            self.kv.free(request_id)

    def computed(self, sequence: Sequence, chunk: ScheduledChunk, *, again: bool = False) -> bool:
        """Note that a step has computed `chunk`, whose last rows are to be run `again`. Returns whether its sequence
        still runs here."""
        is_running = self.running.get(chunk.request_id) is sequence
        if is_running:
            sequence.reach(chunk.last_cut if again else chunk.stop)
            if self.prefixes is not None:
                self.prefixes.keep(sequence)
        elif self.contexts is not None:
            self.contexts.filled(sequence, chunk)
        return is_running

    def preempted(self) -> tuple[str, ...]:
        """The requests that lost their blocks since the last call."""
        ids, self._preempted = tuple(self._preempted), []
        return ids

    def has_room(self, sequence: Sequence) -> bool:
        """Whether the sequence owns the block that its last token goes to."""
        return len(sequence.tokens) <= len(sequence.blocks) * self.limits.kv_block_tokens

    def grow(self) -> None:
        """Give every running sequence the blocks up to its next token's; preempt where two meet.

        One that came from another worker may lack several: it was sampled there while its KV was on the way.
        """
        growing = [one for one in self.running.values() if not self.has_room(one)]
        for sequence in sorted(growing, key=order):
            while sequence.request_id in self.running and not self.has_room(sequence):
                met = self.kv.grow(sequence.request_id)
                if met is None:
                    self._grown(sequence)
                    continue
                if met in self.reservations:
                    if self.reservations.drop(met, "a request that runs needs its blocks"):
                        continue
                    break
                if not self._make_way(max(sequence, self.running[met], key=order)):
                    break

    def start(self) -> None:
        """Start waiting requests in order until one does not fit. A later one never overtakes it."""
        self.kv_full = False
        while True:
            startable = (one for one in self.waiting.values() if not one.held and not one.in_flight)
            sequence = min(startable, key=order, default=None)
            if sequence is None:
                return
            has_slot = self._has_slot()
            blocks = self._place(sequence) if has_slot else None
            if blocks is None:
                if self.reservations.make_way("a request that is ready needs its place"):
                    continue
                self.kv_full = has_slot
                return
            sequence.blocks = blocks
            self.running[sequence.request_id] = self.waiting.pop(sequence.request_id)
            if self.prefixes is not None:
                self._begin(sequence, self.prefixes)

    def reserve(self, name: str, sequence: Sequence) -> Reservation | None:
        """Give blocks to a request that another worker prefills, for one token more than it has.

        None while there is no room, or anything waits here, or a writer is not done with blocks of this name that were
        given up.
        """
        if self.waiting or not self._has_slot() or name in self.kv.owners:
            return None
        count, most = self.limits.blocks(len(sequence.tokens) + 1), self.limits.most_blocks(sequence.request)
        blocks = self.kv.place(name, count, most)
        if blocks is None:
            return None
        sequence.blocks = blocks
        if self.prefixes is not None:
            self._begin(sequence, self.prefixes)
        reservation = Reservation(name, sequence, sequence.computed)
        self.reservations.add(reservation)
        return reservation

    def take_over(self, name: str, command: TakeOver) -> Sequence:
        """Run the request of a reservation, after the command's tokens. Raises ValueError as `Reservations.take`
        does."""
        sequence = self.reservations.take(name)
        sequence.take_over(command)
        self.running[sequence.request_id] = sequence
        return sequence

    def start_in(self, sequence: Sequence, filled: Filled) -> None:
        """Start a waiting request in the blocks where its KV is filled already.

        Where another request owns one of these blocks, it keeps waiting.
        """
        count, most = self.limits.blocks(len(sequence.tokens)), self.limits.most_blocks(sequence.request)
        if not self._has_slot():
            return
        blocks = self.kv.claim(sequence.request_id, range(filled.first_block, filled.first_block + count), most)
        if blocks is not None:
            sequence.blocks = blocks
            sequence.go_on_from(filled)
            self.running[sequence.request_id] = self.waiting.pop(sequence.request_id)

    def preempt(self, sequence: Sequence) -> None:
        """Take the sequence's blocks and have it wait again."""
        self.kv.free(sequence.request_id)
        self.waiting[sequence.request_id] = self.running.pop(sequence.request_id)
        sequence.preempt()
        self._preempted.append(sequence.request_id)

    def _has_slot(self) -> bool:
        return len(self.running) + len(self.reservations) < self.limits.max_num_seqs

    def _begin(self, sequence: Sequence, prefixes: PrefixCache) -> None:
        """Look the prompt up in the prefix cache, unless other workers have run a part of it, which is not mixed with
        kept KV, or all of it has to be computed as log-probabilities are asked for."""
        if self.contexts is not None:
            self.contexts.begin(sequence.request.context_id)
        if sequence.entry is None and sequence.late is None and sequence.request.prompt_logprobs is None:
            prefixes.start(sequence)
        else:
            prefixes.give_way(sequence.blocks)

    def _grown(self, sequence: Sequence) -> None:
        sequence.blocks = self.kv.owned(sequence.request_id)
        if self.prefixes is not None:
            self.prefixes.give_way(sequence.blocks[-1:])

    def _place(self, sequence: Sequence) -> range | None:
        """Find KV blocks to start in, or None.

        No request is preempted for one that never ran. But the first of all, once it has run, does not wait again for
        those after it.
        """
        count, most = self.limits.blocks(len(sequence.tokens)), self.limits.most_blocks(sequence.request)
        while (blocks := self.kv.place(sequence.request_id, count, most)) is None:
            if not sequence.preempted or not self.running:
                return None
            if min(map(order, self.running.values())) < order(sequence):
                return None
            if not self._make_way(max(self.running.values(), key=order)):
                return None
        return blocks

    def _make_way(self, sequence: Sequence) -> bool:
        """Preempt the sequence unless a step runs it. Returns whether it was preempted."""
        if sequence.in_flight:
            return False
        self.preempt(sequence)
        return True

    def check_invariants(self) -> None:
        """Check that blocks belong to running requests, each to one, and that none of them holds kept KV.

        Raises InvariantBroken.
        """
        self.kv.check_invariants()
        if self.prefixes is not None:
            self.prefixes.check_invariants()
        check(self._broken())
        check(self.reservations.broken())

    def _broken(self) -> Iterator[str]:
        yield from (f"scheduler: {id} waits and runs" for id in self.waiting.keys() & self.running.keys())
        for id in self.kv.owners ^ {*self.running, *(one.name for one in self.reservations)}:
            yield f"scheduler: {id} {'runs without' if id in self.running else 'does not run and has'} KV blocks"
        for id, sequence in self.running.items():
            if id in self.kv.owners and sequence.blocks != self.kv.owned(id):
                yield f"scheduler: {id} computes in {sequence.blocks} and owns {self.kv.owned(id)}"
            room = len(sequence.blocks) * self.limits.kv_block_tokens
            if not 0 <= sequence.computed <= min(len(sequence.tokens), room):
                yield f"scheduler: {id} has computed {sequence.computed} of {len(sequence.tokens)} tokens in {room}"
        for id, sequence in self.waiting.items():
            if sequence.computed or sequence.blocks:
                yield f"scheduler: {id} waits and has computed {sequence.computed} tokens in {sequence.blocks}"
