"""The prefix cache: KV of prompts that were computed, for prompts that begin the same. Pure.

It lies in KV blocks that nobody owns, and gives way whenever somebody is to own them: no request waits, or is
preempted, for what is only kept. Owners are placed from the beginning of the KV cache on, so slots are taken from its
end. A request computes in one stretch of blocks, so a hit is a copy: what is kept is only read, and what is owned is
only its owner's to write.

A segment is whole chunks of a prompt, and whole blocks. Rows attend together with the others of their chunk, and their
bits depend on how many these are; so of a prompt's last chunk, where it is shorter, nothing is kept, nor of tokens that
were generated: those attended one by one, and as a part of the next prompt they would not.
"""

from collections.abc import Iterator
from math import lcm

from services.worker.batch import PREFILL_CHUNK, KvCopy, PrefixUse
from services.worker.engine.kv_blocks import KvBlocks
from services.worker.prefix.tree import Node, PrefixTree, Segment
from services.worker.sequence import Sequence
from shared.invariants import check


class PrefixCache:
    """Segments in slots of `kv`: slot `s` is the blocks `s * blocks .. (s + 1) * blocks - 1`. Negative slots are
    `host_blocks` in host memory, for what finds no place in `kv`.

    Copies are due in the order in which they were asked for, before anything that is decided later is computed.
    `fetches`: whether what is in host memory is used, and not computed again.
    """

    def __init__(self, kv: KvBlocks, block_tokens: int, host_blocks: int = 0) -> None:
        self.segment_tokens = lcm(PREFILL_CHUNK, block_tokens)
        self._blocks = self.segment_tokens // block_tokens
        self._kv = kv
        self.fetches = True
        self._host_slots = -(host_blocks // self._blocks)
        self._free_host_slots = list(range(self._host_slots, 0))
        self._tree = PrefixTree()
        self._in_slot: dict[int, Node] = {}
        self._copies: list[KvCopy] = []
        self._borrower: Sequence | None = None
        self._lent = range(0)
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
        if node is None:
            return
        for segment in self._segments(sequence, sequence.computed, node):
            node = sequence.prefix = self._kept(sequence, node, segment)
            if node is None:
                return

    def name(self, sequence: Sequence, until: float, most: int) -> bool:
        """What is kept of its prompt stays until then, ahead of what nobody named; whether that is all of it. No more
        than `most` segments do that for all names."""
        wanted = list(self._segments(sequence, len(sequence.tokens) - 1))
        found = self._tree.match(iter(wanted))
        if found:
            self._tree.name(found[-1], until, most)
        return len(found) == len(wanted)

    def expire(self, now: float) -> None:
        """What was named until `now` stays no longer than what nobody named."""
        self._tree.expire(now)

    def lend(self, sequence: Sequence, count: int) -> bool:
        """Start it in so many blocks that nobody owns, where the least is kept; it is preempted once somebody is to own
        them. What is computed of it is kept where it is. False where there is no such place. Lent to one at a time."""
        places = [start for gap in self._kv.unowned() for start in self._starts(gap, count)]
        if not places:
            return False
        start = min(places, key=lambda start: len(self._kept_in(range(start, start + count))))
        sequence.blocks = self._lent = range(start, start + count)
        self._kv.put(self._lent)
        self._bring(sequence)
        self._borrower = sequence
        return True

    def take_back(self) -> None:
        """What was lent."""
        if self._borrower is not None:
            self._borrower.preempt()
        self._borrower, self._lent = None, range(0)

    def give_way(self, blocks: range) -> None:
        """Somebody owns these from now on. What is in them is moved to where nobody owns anything, or to host memory,
        in place of what was not used for longer."""
        if self._borrower is not None and _overlap(blocks, self._lent):
            self.take_back()
        for node in [self._in_slot.pop(slot) for slot in self._kept_in(blocks)]:
            while node in self._tree:
                slot = self._free_slot()
                if slot is not None:
                    self._copy_to(slot, self._slot(node.slot))
                    node.slot, self._in_slot[slot] = slot, node
                    break
                self._drop_oldest()

    def use(self) -> PrefixUse:
        """What came of it since this was asked before."""
        use = PrefixUse(tuple(self._copies), self._queries, self._hits, self._fetched)
        self._copies, self._queries, self._hits, self._fetched = [], 0, 0, 0
        return use

    def clear(self) -> None:
        """Nothing that was computed is of use any more."""
        self.take_back()
        self._tree, self._copies = PrefixTree(), []
        self._in_slot.clear()
        self._free_host_slots = list(range(self._host_slots, 0))

    def _bring(self, sequence: Sequence) -> None:
        """Copies of what is known of its prompt, into its blocks."""
        sequence.prefix = self._tree.root
        found = self._tree.match(self._segments(sequence, len(sequence.tokens) - 1))
        self.give_way(sequence.blocks)
        for node in found:
            if node not in self._tree or (node.slot < 0 and not self.fetches):
                break
            self._copy(self._slot(node.slot), self._part(sequence, node.depth - 1))
            sequence.prefix = node
            if node.slot < 0:
                self._fetched += self.segment_tokens
        sequence.reach(sequence.prefix.depth * self.segment_tokens)

    def _kept(self, sequence: Sequence, parent: Node, segment: Segment) -> Node | None:
        """What follows `parent`; None where there is no room for it, or that was dropped."""
        if parent not in self._tree:
            return None
        self._tree.use(parent)
        child = parent.children.get(segment)
        if child is not None:
            return child
        part = self._part(sequence, parent.depth)
        if sequence is self._borrower:
            return self._add(parent, segment, part.start // self._blocks)
        slot = self._free_slot()
        if slot is None:
            oldest = self._tree.oldest()
            if oldest is None or oldest is parent:
                return None
            if self._tree.is_named(oldest) and sequence.request.context_id is None:
                return None
            self._drop_oldest()
            slot = self._free_slot()
        if slot is None:
            return None
        self._copy_to(slot, part)
        return self._add(parent, segment, slot)

    def _add(self, parent: Node, segment: Segment, slot: int) -> Node:
        node = self._in_slot[slot] = self._tree.add(parent, segment, slot)
        return node

    def _drop_oldest(self) -> None:
        node = self._tree.oldest()
        assert node is not None
        self._tree.drop(node)
        if self._in_slot.get(node.slot) is node:
            del self._in_slot[node.slot]
            if node.slot < 0:
                self._free_host_slots.append(node.slot)

    def _free_slot(self) -> int | None:
        """The last one of blocks that nobody owns and nothing is kept in, or one in host memory; it is taken."""
        for gap in reversed(list(self._kv.unowned())):
            slots = range(-(-gap.start // self._blocks), gap.stop // self._blocks)
            slot = next((slot for slot in reversed(slots) if self._is_free(slot)), None)
            if slot is not None:
                return slot
        return self._free_host_slots.pop() if self._free_host_slots and self.fetches else None

    def _starts(self, gap: range, count: int) -> range:
        """Where a segment may begin with so many blocks from there on."""
        return range(-(-gap.start // self._blocks) * self._blocks, gap.stop - count + 1, self._blocks)

    def _is_free(self, slot: int) -> bool:
        return slot not in self._in_slot and not _overlap(self._slot(slot), self._lent)

    def _kept_in(self, blocks: range) -> list[int]:
        """The slots that have any of these blocks, and in which something is kept."""
        slots = range(blocks.start // self._blocks, -(-blocks.stop // self._blocks))
        return [slot for slot in slots if slot in self._in_slot]

    def _segments(self, sequence: Sequence, stop: int, after: Node | None = None) -> Iterator[Segment]:
        """Whole segments of the prompt before position `stop`."""
        size = self.segment_tokens
        first = 0 if after is None else after.depth * size
        for start in range(first, min(stop, sequence.prompt_tokens) - size + 1, size):
            yield tuple(sequence.tokens[start : start + size])

    def _slot(self, slot: int) -> range:
        return range(slot * self._blocks, (slot + 1) * self._blocks)

    def _part(self, sequence: Sequence, segment: int) -> range:
        """The blocks of its own for a segment."""
        start = sequence.blocks.start + segment * self._blocks
        return range(start, start + self._blocks)

    def _copy_to(self, slot: int, source: range) -> None:
        if slot >= 0:  # else in host memory
            self._kv.put(self._slot(slot))
        self._copy(source, self._slot(slot))

    def _copy(self, source: range, target: range) -> None:
        self._copies.append(KvCopy(source, target))

    def check_invariants(self) -> None:
        """Each segment is in a slot of its own, of blocks that nobody owns. Raises InvariantBroken."""
        self._tree.check_invariants()
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        if {node.slot: node for node in self._tree.nodes()} != self._in_slot or len(self._in_slot) != len(self._tree):
            yield "prefix cache: the slots in use are not those of the segments"
        owned = {block for owner in self._kv.owners for block in self._kv.owned(owner)}
        if not owned.isdisjoint(self._lent):
            yield f"prefix cache: of the blocks {self._lent}, which are lent, some are owned"
        host_slots = sorted([*self._free_host_slots, *(slot for slot in self._in_slot if slot < 0)])
        if host_slots != list(range(self._host_slots, 0)):
            yield "prefix cache: a slot in host memory is neither free nor in use, or both"
        for slot in self._in_slot:
            if not owned.isdisjoint(self._slot(slot)) or self._slot(slot).stop > self._kv.total:
                yield f"prefix cache: slot {slot} has blocks {self._slot(slot)}, which are owned or not there"


def _overlap(blocks: range, others: range) -> bool:
    return max(blocks.start, others.start) < min(blocks.stop, others.stop)
