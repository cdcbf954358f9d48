"""The prefix cache: KV of prompts that were computed, for prompts that begin the same. Pure.

It lies in KV blocks without an owner and gives way whenever a request is to own them: no request waits, or is
preempted, for what is only kept. Owners are placed from the beginning of the KV cache on, so the cache takes blocks
from its end. A request computes in one stretch of blocks, so a hit is a copy: what is kept is only read, and only its
owner writes what is owned.

Whole blocks are kept. Rows of a prompt attend from cut to cut (`PROMPT_CUT`), and their bits depend on how many rows
that is; a block ends at a cut. So nothing is kept of a prompt's last block where it is not full. Nothing is kept of
generated tokens either: those attended one by one, and as a part of the next prompt they would not.
"""

from collections.abc import Iterator
from itertools import islice

from livescale.services.worker.kv.block_manager import BlockManager, BlockTiers
from livescale.services.worker.kv.radix_tree import RadixNode, RadixTree, Segment
from livescale.services.worker.scheduling.batch import KvCopy, PrefixUse
from livescale.services.worker.scheduling.sequence import Sequence
from livescale.shared.policy.invariants import check


class PrefixCache:
    """Segments of prompts, each of `block_tokens` tokens in a block of its own.

    Blocks of `kv` come first. Negative block numbers are the `host_blocks` blocks in host memory, for what finds no
    place in `kv`. Copies are due in the order in which they were asked for, before anything that is decided later is
    computed. `fetches` says whether KV in host memory is fetched, and not computed again.
    """

    def __init__(self, kv: BlockManager, block_tokens: int, host_blocks: int = 0) -> None:
        self.fetches = True
        self._block_tokens = block_tokens
        self._places = BlockTiers(kv, host_blocks)
        self._kv = kv
        self._tree = RadixTree()
        self._copies = PendingCopies()
        self._borrower: Sequence | None = None
        self._queries = self._hits = self._fetched = 0

    def __len__(self) -> int:
        return len(self._tree)

    def start(self, sequence: Sequence) -> None:
        """Copy what is known of the prompt into the blocks that the sequence has just been given.

        Its last token is computed in any case, because a token is to be sampled after it.
        """
        self._bring(sequence)
        if not sequence.preempted:  # else it is known what it would have found
            sequence.cached = sequence.computed
            self._queries += sequence.prompt_tokens
            self._hits += sequence.cached

    def keep(self, sequence: Sequence) -> None:
        """Keep what is computed of the sequence's prompt, as far as there is room."""
        node, whole = sequence.prefix, min(sequence.computed, sequence.prompt_tokens) // self._block_tokens
        if node is None or node.depth >= whole:  # as after every token that is generated
            return
        segments = list(self._segments(sequence, sequence.computed, node.depth))
        sequence.prefix = self._kept(sequence, node, segments) if node in self._tree else None

    def keepable(self, sequence: Sequence) -> int:
        """The number of the prompt's tokens that can be kept when all but the last are computed."""
        return (sequence.prompt_tokens - 1) // self._block_tokens * self._block_tokens

    def name(self, sequence: Sequence, until: float, most: int) -> bool:
        """Keep the sequence's prompt until the time `until`, ahead of prompts that have no name.

        Returns whether all of it is here. Names keep at most `most` blocks in all.
        """
        wanted = list(self._segments(sequence, self.keepable(sequence)))
        found = self._tree.match(wanted)
        if found:
            self._tree.name(found[-1], until, most)
        return len(found) == len(wanted)

    def expire(self, now: float) -> None:
        """Treat prompts that were named until `now` or earlier like those without a name."""
        self._tree.expire(now)

    def lend(self, sequence: Sequence, count: int) -> bool:
        """Start the sequence in `count` blocks without an owner, where the least is kept. Returns False where there are
        none.

        The sequence is preempted once a request is to own its blocks. What is computed of it is kept where it is. Only
        one sequence borrows at a time.
        """
        blocks = self._places.least_kept(count)
        if blocks is None:
            return False
        sequence.blocks = self._places.lent = blocks
        self._kv.put(blocks)
        self._bring(sequence)
        self._borrower = sequence
        return True

    def take_back(self) -> None:
        """Preempt the sequence that computes in lent blocks, if there is one."""
        if self._borrower is not None:
            self._borrower.preempt()
        self._borrower, self._places.lent = None, range(0)

    def give_way(self, blocks: range) -> None:
        """Clear `blocks`, which a request owns from now on.

        What is kept in them moves to blocks without an owner, or to host memory, in place of what was used less
        recently.
        """
        if self._borrower is not None and _overlap(blocks, self._places.lent):
            self.take_back()
        moving = dict.fromkeys(self._places.lift(block) for block in self._places.kept_in(blocks))
        room = list(islice(self._free_blocks(), len(moving)))
        while len(moving) > len(room):
            dropped = self._drop_oldest()
            if dropped in moving:
                del moving[dropped]
            elif self._is_free(dropped.block):
                room.append(dropped.block)
        for node, block in zip(moving, _in_order(room), strict=False):
            self._copies.add(node.block, block)
            self._places.put(node, block)

    def use(self) -> PrefixUse:
        """What the cache contributed since the last call: copies that are due, and counts of tokens."""
        use = PrefixUse(self._copies.take(), self._queries, self._hits, self._fetched)
        self._queries = self._hits = self._fetched = 0
        return use

    def due_copies(self) -> tuple[KvCopy, ...]:
        """The copies that are due, which are then no longer."""
        return self._copies.take()

    def clear(self) -> None:
        """Forget everything: nothing that was computed can be used any more."""
        self.take_back()
        self._tree, self._copies = RadixTree(), PendingCopies()
        self._places.clear()

    def _bring(self, sequence: Sequence) -> None:
        """Copy what is known of the prompt into the sequence's blocks."""
        sequence.prefix = self._tree.root
        found = self._tree.match(list(self._segments(sequence, len(sequence.tokens) - 1)))
        self.give_way(sequence.blocks)
        for node, block in zip(found, sequence.blocks, strict=False):
            if node not in self._tree or (node.block < 0 and not self.fetches):
                break
            self._copies.add(node.block, block)
            sequence.prefix = node
            if node.block < 0:
                self._fetched += self._block_tokens
        sequence.reach(sequence.prefix.depth * self._block_tokens)

    def _kept(self, sequence: Sequence, node: RadixNode, segments: list[Segment]) -> RadixNode | None:
        """Keep `segments` after `node`. Returns the last node, or None where there was no room for all."""
        known = self._tree.match(segments, node)
        node = known[-1] if known else node
        new = segments[len(known) :]
        blocks = self._room(sequence, node, len(new))
        for segment, block in zip(new, blocks, strict=False):
            source = sequence.blocks[node.depth]
            if block != source:
                self._copies.add(source, block)
            node = self._tree.add(node, segment)
            self._places.put(node, block)
        self._tree.use(node)
        return node if len(blocks) == len(new) else None

    def _room(self, sequence: Sequence, after: RadixNode, count: int) -> list[int]:
        """Find blocks for `count` segments that follow `after`, or for the first of them."""
        if sequence is self._borrower:
            return list(sequence.blocks[after.depth : after.depth + count])
        room = list(islice(self._free_blocks(), count))
        while len(room) < count:
            oldest = self._tree.oldest()
            if oldest is None or oldest is after:
                break
            if self._tree.is_named(oldest) and sequence.request.context_id is None:
                break
            block = self._drop_oldest().block
            if self._is_free(block):
                room.append(block)
        return _in_order(room)

    def _drop_oldest(self) -> RadixNode:
        node = self._tree.oldest()
        assert node is not None
        self._tree.drop(node)
        if self._places.holds(node):
            self._places.lift(node.block)
        return node

    def _free_blocks(self) -> Iterator[int]:
        return self._places.free(in_host=self.fetches)

    def _is_free(self, block: int) -> bool:
        return self._places.is_free(block, in_host=self.fetches)

    def _segments(self, sequence: Sequence, stop: int, first: int = 0) -> Iterator[Segment]:
        """Yield the prompt's segments from number `first` on that end at position `stop` or before. The first of all
        begins with the request's adapter and salt, so that prompts of another one follow nowhere."""
        size, salt = self._block_tokens, sequence.request.cache_salt
        first_of_all: tuple[str, ...] = () if salt is None else (salt,)
        if sequence.adapter is not None:
            first_of_all = (sequence.adapter, salt or "")
        for start in range(first * size, min(stop, sequence.prompt_tokens) - size + 1, size):
            tokens = tuple(sequence.tokens[start : start + size])
            yield tokens if start else (*first_of_all, *tokens)

    def check_invariants(self) -> None:
        """Check that each segment is in a block of its own, and that these blocks have no owner. Raises
        InvariantBroken."""
        self._tree.check_invariants()
        check(self._places.broken(list(self._tree.nodes())))


def _in_order(blocks: list[int]) -> list[int]:
    """Sort blocks so that neighbours can be copied together; blocks in host memory come last."""
    return sorted(blocks, key=lambda block: (block < 0, block))


def _overlap(blocks: range, others: range) -> bool:
    return max(blocks.start, others.start) < min(blocks.stop, others.stop)


def fetch_pays(fetch_rate: float | None, prefill_rate: float | None) -> bool:
    """Whether KV in host memory is fetched, or computed again: the cost model of DeepServe's populate (4.1).

    Both rates are measured, in tokens per second. While one is unknown the answer is to fetch, which was the faster way
    on every machine so far.
    """
    return fetch_rate is None or prefill_rate is None or fetch_rate > prefill_rate


class PendingCopies:
    """Copies of blocks that are due, in the order in which they were asked for; neighbours are joined where they may
    be."""

    def __init__(self) -> None:
        self._copies: list[KvCopy] = []

    def add(self, source: int, target: int) -> None:
        """Ask for a copy of one block into another."""
        last = self._copies[-1] if self._copies else None
        if last is not None and _goes_on(last, source, target):
            longer = KvCopy(range(last.source.start, source + 1), range(last.target.start, target + 1))
            self._copies[-1] = longer
        else:
            self._copies.append(KvCopy(range(source, source + 1), range(target, target + 1)))

    def take(self) -> tuple[KvCopy, ...]:
        """Return all copies that are due, and forget them."""
        copies, self._copies = tuple(self._copies), []
        return copies


def _goes_on(last: KvCopy, source: int, target: int) -> bool:
    """Whether this block follows those of `last` in the same memory, and neither copy reads what the other writes."""
    follows = source == last.source.stop != 0 and target == last.target.stop != 0
    return follows and source not in last.target and target not in last.source
