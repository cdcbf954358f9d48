"""Who waits and who runs: requests get KV blocks in order, grow, and where two meet one gives way. Pure."""

from collections.abc import Iterator

from livescale.services.worker.batch import Piece
from livescale.services.worker.engine.kv_blocks import KvBlocks
from livescale.services.worker.fairness import order
from livescale.services.worker.limits import Limits
from livescale.services.worker.prefix.cache import PrefixCache
from livescale.services.worker.prefix.contexts import Contexts
from livescale.services.worker.sequence import Filled, Sequence
from livescale.shared.policy.invariants import check


class Admission:
    """Waiting requests start in order, once there are KV blocks for what they have and some more; they grow as tokens
    come. Where two meet in a full cache, the later of the two is preempted: it loses its blocks, waits again, ahead of
    all that are later, and is computed again from its prompt and tokens, with the same bits. So the first in order only
    ever loses its place at the end of the cache, and then others make room for it at once: once started, it gains in
    every step, and so everybody ends.

    Whoever is in a batch under way keeps its blocks: for those it is waited for, and they are run in a later batch.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kv = KvBlocks(limits.kv_blocks)
        self.prefixes: PrefixCache | None = None
        self.contexts: Contexts | None = None
        self.waiting: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}  # in the order they started
        self.kv_full = False
        self._preempted: list[str] = []

    def keep_prefixes(self) -> None:
        """From now on the KV of all layers is here: what is computed of prompts is kept for those that begin alike."""
        if self.prefixes is None and self.limits.enable_prefix_caching:
            self.prefixes = PrefixCache(self.kv, self.limits.kv_block_tokens, self.limits.host_kv_blocks)
            self.contexts = Contexts(self.prefixes, self.limits)

    def all(self) -> list[Sequence]:
        return [*self.running.values(), *self.waiting.values()]

    def get(self, request_id: str) -> Sequence | None:
        return self.waiting.get(request_id) or self.running.get(request_id)

    def release(self, request_id: str) -> None:
        """The request is here no more."""
        if self.waiting.pop(request_id, None) is None:
            del self.running[request_id]
            self.kv.free(request_id)

    def computed(self, sequence: Sequence, piece: Piece) -> bool:
        """A step has computed this; whether it is of a request that runs."""
        is_running = self.running.get(piece.request_id) is sequence
        if is_running:
            sequence.reach(piece.stop)
            if self.prefixes is not None:
                self.prefixes.keep(sequence)
        elif self.contexts is not None:
            self.contexts.filled(sequence, piece)
        return is_running

    def preempted(self) -> tuple[str, ...]:
        """Those who lost their blocks since this was asked before."""
        ids, self._preempted = tuple(self._preempted), []
        return ids

    def has_room(self, sequence: Sequence) -> bool:
        """Whether it owns the block that its last token goes to."""
        return len(sequence.tokens) <= len(sequence.blocks) * self.limits.kv_block_tokens

    def grow(self) -> None:
        """Whoever runs gets the block that its next token goes to."""
        growing = [one for one in self.running.values() if not self.has_room(one)]
        for sequence in sorted(growing, key=order):
            while sequence.request_id in self.running:
                met = self.kv.grow(sequence.request_id)
                if met is None:
                    self._grown(sequence)
                    break
                if not self._make_way(max(sequence, self.running[met], key=order)):
                    break

    def start(self) -> None:
        """Start waiting requests in order until one does not fit: a later one never overtakes it."""
        self.kv_full = False
        while len(self.running) < self.limits.max_num_seqs:
            startable = (one for one in self.waiting.values() if not one.held and not one.in_flight)
            sequence = min(startable, key=order, default=None)
            if sequence is None:
                return
            blocks = self._place(sequence)
            if blocks is None:
                self.kv_full = True
                return
            sequence.blocks = blocks
            self.running[sequence.request_id] = self.waiting.pop(sequence.request_id)
            if self.prefixes is not None:
                self._begin(sequence, self.prefixes)

    def start_in(self, sequence: Sequence, filled: Filled) -> None:
        """Start one that waits where KV of it is already; where somebody has the place it waits like any."""
        count, most = self.limits.blocks(len(sequence.tokens)), self.limits.most_blocks(sequence.request)
        if len(self.running) >= self.limits.max_num_seqs:
            return
        blocks = self.kv.claim(sequence.request_id, range(filled.first_block, filled.first_block + count), most)
        if blocks is not None:
            sequence.blocks = blocks
            sequence.go_on_from(filled)
            self.running[sequence.request_id] = self.waiting.pop(sequence.request_id)

    def preempt(self, sequence: Sequence) -> None:
        self.kv.free(sequence.request_id)
        self.waiting[sequence.request_id] = self.running.pop(sequence.request_id)
        sequence.preempt()
        self._preempted.append(sequence.request_id)

    def _begin(self, sequence: Sequence, prefixes: PrefixCache) -> None:
        """What others have run of it, or will bring, is not to be mixed with what is kept here."""
        if self.contexts is not None:
            self.contexts.begin(sequence.request.context_id)
        if sequence.entry is None and sequence.late is None:
            prefixes.start(sequence)
        else:
            prefixes.give_way(sequence.blocks)

    def _grown(self, sequence: Sequence) -> None:
        sequence.blocks = self.kv.owned(sequence.request_id)
        if self.prefixes is not None:
            self.prefixes.give_way(sequence.blocks[-1:])

    def _place(self, sequence: Sequence) -> range | None:
        """KV blocks to start with. Nobody is preempted for one that never ran; but the first of all, once it has,
        does not wait again for those after it."""
        count, most = self.limits.blocks(len(sequence.tokens)), self.limits.most_blocks(sequence.request)
        while (blocks := self.kv.place(sequence.request_id, count, most)) is None:
            if not sequence.preempted or min(map(order, self.running.values())) < order(sequence):
                return None
            if not self._make_way(max(self.running.values(), key=order)):
                return None
        return blocks

    def _make_way(self, sequence: Sequence) -> bool:
        """Whether it could be preempted, and was."""
        if sequence.in_flight:
            return False
        self.preempt(sequence)
        return True

    def check_invariants(self) -> None:
        """Who runs owns its blocks and nobody else does; what is kept is in none of them. Raises InvariantBroken."""
        self.kv.check_invariants()
        if self.prefixes is not None:
            self.prefixes.check_invariants()
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        yield from (f"scheduler: {id} waits and runs" for id in self.waiting.keys() & self.running.keys())
        for id in self.kv.owners ^ self.running.keys():
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
