"""The prefix cache: KV of prompts that were computed, for prompts that begin the same. Pure.

It lies in KV blocks that nobody owns, and gives way whenever somebody is to own them: no request waits, or is
preempted, for what is only kept. Owners are placed from the beginning of the KV cache on, so blocks are taken from its
end. A request computes in one stretch of blocks, so a hit is a copy: what is kept is only read, and what is owned is
only its owner's to write.

What is kept is whole blocks. Rows of a prompt attend from cut to cut (`PROMPT_CUT`), and their bits depend on how many
these are; a block ends at a cut. So of a prompt's last block, where it is not full, nothing is kept, nor of tokens that
were generated: those attended one by one, and as a part of the next prompt they would not.
"""

from collections.abc import Iterator
from itertools import islice

from livescale.services.worker.batch import PrefixUse
from livescale.services.worker.engine.kv_blocks import KvBlocks
from livescale.services.worker.prefix.copies import Copies
from livescale.services.worker.prefix.places import Places
from livescale.services.worker.prefix.tree import Node, PrefixTree, Segment
from livescale.services.worker.sequence import Sequence
from livescale.shared.policy.invariants import check


class PrefixCache:
    """Each segment of a prompt is `block_tokens` tokens, in a block of `kv`; negative blocks are `host_blocks` in host
    memory, for what finds no place in `kv`.

    Copies are due in the order in which they were asked for, before anything that is decided later is computed.
    `fetches`: whether what is in host memory is used, and not computed again.
    """

    def __init__(self, kv: KvBlocks, block_tokens: int, host_blocks: int = 0) -> None:
        self.fetches = True
        self._block_tokens = block_tokens
        self._places = Places(kv, host_blocks)
        self._kv = kv
        self._tree = PrefixTree()
        self._copies = Copies()
        self._borrower: Sequence | None = None
        self._queries = self._hits = self._fetched = 0

    def __len__(self) -> int:
        return len(self._tree)

    def start(self, sequence: Sequence) -> None:
        """It has just been given blocks, and nothing of it is computed: what is known of its prompt is copied there.
        Its last token is computed all the same: after it, one is to be chosen."""
        self._bring(sequence)
        if not sequence.preempted:  # else it is known what it would have found
            sequence.cached = sequence.computed
            self._queries += sequence.prompt_tokens
            self._hits += sequence.cached

    def keep(self, sequence: Sequence) -> None:
        """What is computed of its prompt, as far as there is room."""
        node = sequence.prefix
        segments = [] if node is None else list(self._segments(sequence, sequence.computed, node.depth))
        if node is None or not segments:
            return
        sequence.prefix = self._kept(sequence, node, segments) if node in self._tree else None

    def keepable(self, sequence: Sequence) -> int:
        """So many tokens of its prompt can be kept, when all but the last are computed."""
        return (sequence.prompt_tokens - 1) // self._block_tokens * self._block_tokens

    def name(self, sequence: Sequence, until: float, most: int) -> bool:
        """What is kept of its prompt stays until then, ahead of what nobody named; whether that is all of it. No more
        than `most` blocks do that for all names."""
        wanted = list(self._segments(sequence, self.keepable(sequence)))
        found = self._tree.match(wanted)
        if found:
            self._tree.name(found[-1], until, most)
        return len(found) == len(wanted)

    def expire(self, now: float) -> None:
        """What was named until `now` stays no longer than what nobody named."""
        self._tree.expire(now)

    def lend(self, sequence: Sequence, count: int) -> bool:
        """Start it in so many blocks that nobody owns, where the least is kept; it is preempted once somebody is to own
        them. What is computed of it is kept where it is. False where there is no such place. Lent to one at a time."""
        blocks = self._places.least_kept(count)
        if blocks is None:
            return False
        sequence.blocks = self._places.lent = blocks
        self._kv.put(blocks)
        self._bring(sequence)
        self._borrower = sequence
        return True

    def take_back(self) -> None:
        """What was lent."""
        if self._borrower is not None:
            self._borrower.preempt()
        self._borrower, self._places.lent = None, range(0)

    def give_way(self, blocks: range) -> None:
        """Somebody owns these from now on. What is in them is moved to where nobody owns anything, or to host memory,
        in place of what was not used for longer."""
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
        """What came of it since this was asked before."""
        use = PrefixUse(self._copies.take(), self._queries, self._hits, self._fetched)
        self._queries = self._hits = self._fetched = 0
        return use

    def clear(self) -> None:
        """Nothing that was computed is of use any more."""
        self.take_back()
        self._tree, self._copies = PrefixTree(), Copies()
        self._places.clear()

    def _bring(self, sequence: Sequence) -> None:
        """Copies of what is known of its prompt, into its blocks."""
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

    def _kept(self, sequence: Sequence, node: Node, segments: list[Segment]) -> Node | None:
        """The last of what follows `node`; None where there is no room for all."""
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

    def _room(self, sequence: Sequence, after: Node, count: int) -> list[int]:
        """Blocks for so many segments that follow `after`, or for the first of them."""
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

    def _drop_oldest(self) -> Node:
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
        """Those of the prompt that end before position `stop`, or there."""
        size = self._block_tokens
        for start in range(first * size, min(stop, sequence.prompt_tokens) - size + 1, size):
            yield tuple(sequence.tokens[start : start + size])

    def check_invariants(self) -> None:
        """Each segment is in a block of its own, which nobody owns. Raises InvariantBroken."""
        self._tree.check_invariants()
        check(self._places.broken(list(self._tree.nodes())))


def _in_order(blocks: list[int]) -> list[int]:
    """So that what follows one another lies so, and can be copied together; those in host memory last."""
    return sorted(blocks, key=lambda block: (block < 0, block))


def _overlap(blocks: range, others: range) -> bool:
    return max(blocks.start, others.start) < min(blocks.stop, others.stop)
