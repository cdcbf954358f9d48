"""Thirty thousand random operations: a block has one owner, or is kept and only read; and nothing is left over."""

import random

import pytest

from livescale.services.worker.kv.block_manager import BlockManager
from livescale.services.worker.scheduling.prefix_cache import PrefixCache
from livescale.services.worker.scheduling.sequence import Sequence
from tests.worker.requests import submit

BLOCK_TOKENS = 64  # two to what prompts have in common
BLOCKS = 41


class Owners:
    """Requests that come, compute, grow and go. `memory`: by which tokens the KV in each block was made; those in host
    memory are the last."""

    def __init__(self, seed: int, host_blocks: int) -> None:
        self.chance = random.Random(seed)
        self.kv = BlockManager(BLOCKS)
        self.cache = PrefixCache(self.kv, BLOCK_TOKENS, host_blocks)
        self.memory = [0] * (BLOCKS + host_blocks)
        self.running: dict[str, Sequence] = {}
        self.begun = self.found = self.fetched = 0

    def operate(self) -> None:
        operation = self.chance.choice((self.begin, self.compute, self.compute, self.grow, self.end))
        operation()

    def begin(self) -> None:
        segments = self.chance.choices(range(3), k=self.chance.randrange(6))
        prompt = [token for segment in segments for token in [segment] * 128] + [3] * self.chance.randint(1, 127)
        sequence = Sequence(submit(str(self.begun), prompt, max_tokens=400), self.begun)
        count = -(-len(prompt) // BLOCK_TOKENS)
        blocks = self.kv.place(sequence.request_id, count, count + 6)
        if blocks is None:
            return
        self.begun += 1
        sequence.blocks = blocks
        self.cache.start(sequence)
        self.found += sequence.computed
        self.running[sequence.request_id] = sequence

    def compute(self) -> None:
        sequence = self._any()
        if sequence is None:
            return
        self._copy()
        computed = sequence.computed // BLOCK_TOKENS
        for index, block in enumerate(sequence.blocks):
            right = hash(tuple(sequence.tokens[: (index + 1) * BLOCK_TOKENS]))
            if index >= computed:
                self.memory[block] = right
            assert self.memory[block] == right
        sequence.reach(len(sequence.tokens))
        self.cache.keep(sequence)

    def grow(self) -> None:
        sequence = self._any()
        if sequence is None or len(sequence.blocks) * BLOCK_TOKENS >= sequence.prompt_tokens + 384:
            return
        if self.kv.grow(sequence.request_id) is None:
            sequence.blocks = self.kv.owned(sequence.request_id)
            self.cache.give_way(sequence.blocks[-1:])

    def end(self) -> None:
        sequence = self._any()
        if sequence is not None:
            del self.running[sequence.request_id]
            self.kv.free(sequence.request_id)

    def check(self) -> None:
        self.kv.check_invariants()
        self.cache.check_invariants()

    def _any(self) -> Sequence | None:
        return self.chance.choice(list(self.running.values())) if self.running else None

    def _copy(self) -> None:
        use = self.cache.use()
        self.fetched += use.fetched
        for copy in use.copies:
            for source, target in zip(copy.source, copy.target, strict=True):
                self.memory[target] = self.memory[source]


@pytest.mark.parametrize("host_blocks", [0, 13])
def test_a_block_has_one_owner_or_is_kept_and_only_read(host_blocks: int) -> None:
    owners = Owners(seed=1, host_blocks=host_blocks)
    for operation in range(30_000):
        owners.operate()
        if operation % 1_000 == 0:
            owners.cache.fetches = owners.chance.random() < 0.8
        if operation % 50 == 0:
            owners.check()
    owners.check()
    assert owners.begun > 3_000
    assert (owners.fetched > 0) is (host_blocks > 0)
    assert owners.found > owners.begun * 40, "a good part of what begins is found"
    for request_id in list(owners.running):
        owners.kv.free(request_id)
    assert owners.kv.used == 0
    owners.cache.clear()
    assert len(owners.cache) == 0
    assert list(owners.kv.unowned()) == [range(BLOCKS)]
