"""The KV cache of a modelled engine: of which tokens it holds keys and values, layer by layer. Pure.

In place of the keys and values of a position there is its state, which depends on all tokens up to it. Positions that
follow each other are kept together with the layers that have them: a request that is computed in one place is one
extent, however long it is. What was lost, damaged, overwritten or left by another request is found when a layer attends
to it.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from livescale.services.worker.engine.modelled_steps import STATE_BYTES, cuts, follow, follows


@dataclass(eq=False, slots=True)
class KvExtent:
    """Token slots `start` to `stop` - 1 in `layers`, a bit for each. Every state follows from the one before it.

    `states` begin with slot `origin`, which is `start` or earlier.
    """

    start: int
    stop: int
    layers: int
    states: "array[int]"
    origin: int

    def at(self, slot: int) -> int:
        return self.states[slot - self.origin]

    def part(self, start: int, stop: int) -> "array[int]":
        return self.states[start - self.origin : stop - self.origin]

    def touches(self, start: int, stop: int) -> bool:
        return self.start < stop and start < self.stop and self.start < self.stop


class ModelledKv:
    """The cache of `blocks` blocks, and of `host_blocks` blocks with negative numbers, for a model of `layers` layers.

    A slot is a token's place: the number of its block times `block_tokens`, and its place in the block.
    """

    def __init__(self, layers: int, blocks: int, block_tokens: int, host_blocks: int = 0) -> None:
        self._layers = layers
        self._model = (1 << layers) - 1
        self._every = (1 << layers + 2) - 1
        self._block_tokens = block_tokens
        self._total = blocks + host_blocks
        self._extents: dict[int, list[KvExtent]] = {}  # by block; some may have been cut and touch it no more

    def mask(self, layers: range) -> int:
        """A bit for each of these layers. Stages without any layer have bits of their own: their rows are there too."""
        if len(layers) == self._layers:
            return self._every
        if not layers:
            return 1 << self._layers + (layers.start > 0)
        return self._whole((1 << layers.stop) - (1 << layers.start))

    def slots(self, blocks: range) -> range:
        start = blocks.start % self._total * self._block_tokens
        return range(start, start + len(blocks) * self._block_tokens)

    def last(self, slots: range, layers: int, before: int) -> int | None:
        """The state in the last of `slots`, if all that `layers` have in them are the states that follow `before`."""
        state, slot, layers = before, slots.start, layers & self._model or layers
        while slot < slots.stop:
            have, stop, parts = 0, slots.stop, []
            for extent in self._extents.get(slot // self._block_tokens, ()):
                if extent.layers & layers and extent.start <= slot < extent.stop:
                    if not follows(state, extent.states[slot - extent.origin]):
                        return None
                    have |= extent.layers
                    if extent.stop < stop:
                        stop = extent.stop
                    parts.append(extent)
                    if not layers & ~have:
                        break  # each layer is in one extent only
            if layers & ~have:
                return None
            end = stop - 1
            state, slot = parts[0].states[end - parts[0].origin], stop
            if len(parts) > 1 and any(one.states[end - one.origin] != state for one in parts):
                return None
        return state

    def go_on(self, first: int, slot: int, before: int, tokens: Iterable[int]) -> "array[int] | None":
        """Run all layers over `tokens`, from `slot` on, which follow those from slot `first` on. Returns their states;
        None, with nothing done, unless all that they attend to is one extent, as nearly always while a request
        decodes."""
        for extent in self._extents.get((slot - 1) // self._block_tokens, ()):
            if extent.start <= first < slot == extent.stop and extent.layers == self._every:
                if not follows(before, extent.at(first)):
                    return None
                states = array("Q", follow(extent.states[-1], tokens))
                self.write(slot, states, self._every)
                return states
        return None

    def read(self, slots: range, layer: int) -> "array[int] | None":
        """The states that one layer has in `slots`, if they follow each other; else None."""
        for extent in self._extents.get(slots.start // self._block_tokens, ()):
            if extent.layers >> layer & 1 and extent.start <= slots.start and slots.stop <= extent.stop:
                return extent.part(slots.start, slots.stop)
        return None

    def write(self, start: int, states: "array[int]", layers: int) -> None:
        """Store states that follow each other, from slot `start` on."""
        slots, layers = range(start, start + len(states)), self._whole(layers)
        if layers == self._every and self._lengthen(slots, states):
            return
        self._clear(slots, layers)
        if self._widen(slots, states, layers):
            return
        for extent in self._extents.get((start - 1) // self._block_tokens, ()):
            if extent.stop == start and extent.layers == layers and follows(extent.at(start - 1), states[0]):
                extent.states.extend(states)
                extent.stop = slots.stop
                break
        else:
            extent = KvExtent(start, slots.stop, layers, states[:], start)
        self._register(extent, slots)
        self._join(extent)

    def _widen(self, slots: range, states: "array[int]", layers: int) -> bool:
        """Note that `layers` have the same states as others, as where a prompt runs layer by layer. Returns whether
        others had them in the same slots."""
        for extent in self._extents.get(slots.start // self._block_tokens, ()):
            spans = extent.start == slots.start and extent.stop == slots.stop
            if spans and extent.part(slots.start, slots.stop) == states:
                extent.layers = self._whole(extent.layers | layers)
                return True
        return False

    def _lengthen(self, slots: range, states: "array[int]") -> bool:
        """Append states to an extent of all layers in their block, as nearly all decoded rows are. Returns whether they
        were for one. At most one other extent is there, which another request has left."""
        block = slots.start // self._block_tokens
        extents, end = self._extents.get(block, []), (block + 1) * self._block_tokens
        if slots.stop > end or not 0 < len(extents) <= 2:
            return False
        mine, other = extents[-1], extents[0]
        if not mine.start < mine.stop == slots.start or mine.layers != self._every:
            return False
        if not follows(mine.states[-1], states[0]):
            return False
        if other is not mine and other.touches(slots.start, slots.stop):
            if other.start < slots.start:
                return False
            other.start = min(other.stop, slots.stop)
            if not other.touches(slots.stop, end):
                del extents[0]
        mine.states.extend(states)
        mine.stop = slots.stop
        return True

    def export(self, slots: range, layers: range, part_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield what `layers` have in `slots`, each with its place: the part of each layer takes `part_bytes`, and is 0
        where nothing is."""
        for extent in self._touching(slots):
            start, stop = max(extent.start, slots.start), min(extent.stop, slots.stop)
            states = extent.part(start, stop).tobytes()
            for number, layer in enumerate(layers):
                if extent.layers >> layer & 1:
                    yield number * part_bytes + (start - slots.start) * STATE_BYTES, states

    def take(self, slots: range, layers: range, parts: Iterable[bytes]) -> None:
        """Store what `export` told for as many slots of these layers: the beginning of the part of each."""
        equal: dict[bytes, int] = {}  # layers with the same states
        for layer, came in zip(layers, parts, strict=True):
            equal[came] = equal.get(came, 0) | 1 << layer
        self._clear(slots, self.mask(layers))
        for came, mask in equal.items():
            for offset, states in in_sequence(array("Q", came)):
                self.write(slots.start + offset, states, mask)

    def copy(self, source: range, target: range) -> None:
        """Copy all layers of `source` into as many other slots."""
        copied = []
        for extent in self._touching(source):
            start, stop = max(extent.start, source.start), min(extent.stop, source.stop)
            copied.append((start - source.start, extent.layers, extent.part(start, stop)))
        self._clear(target, self._every)
        for offset, layers, states in sorted(copied, key=lambda one: one[:2]):
            self.write(target.start + offset, states, layers)

    def _whole(self, layers: int) -> int:
        """The same layers; where these are all of the model, with the bits of stages without a layer."""
        return self._every if layers & self._model == self._model else layers

    def _touching(self, slots: range) -> list[KvExtent]:
        found = dict.fromkeys(extent for block in self._blocks(slots) for extent in self._extents.get(block, ()))
        return [extent for extent in found if extent.touches(slots.start, slots.stop)]

    def _blocks(self, slots: Sequence[int]) -> range:
        return range(slots[0] // self._block_tokens, slots[-1] // self._block_tokens + 1)

    def _clear(self, slots: range, layers: int) -> None:
        """Forget what `layers` have in `slots`."""
        for block in self._blocks(slots):
            extents = self._extents.get(block)
            if not extents:
                continue
            first, gone = block * self._block_tokens, False
            for extent in tuple(extents):
                if extent.layers & layers and extent.touches(slots.start, slots.stop):
                    self._cut(extent, slots, extent.layers & ~layers)
                gone = gone or not extent.touches(first, first + self._block_tokens)
            if gone:
                self._extents[block] = [one for one in extents if one.touches(first, first + self._block_tokens)]

    def _cut(self, extent: KvExtent, slots: range, rest: int) -> None:
        """Leave only the layers `rest` of an extent in `slots`."""
        start, stop = max(extent.start, slots.start), min(extent.stop, slots.stop)
        if rest:
            self._register(KvExtent(start, stop, rest, extent.part(start, stop), start), range(start, stop))
        if start == extent.start:
            extent.start = stop
            return
        if stop < extent.stop:
            end = extent.stop
            self._register(KvExtent(stop, end, extent.layers, extent.part(stop, end), stop), range(stop, end))
        del extent.states[start - extent.origin :]
        extent.stop = start

    def _register(self, extent: KvExtent, slots: range) -> None:
        for block in self._blocks(slots):
            extents = self._extents.get(block)
            if not extents:
                self._extents[block] = [extent]
            elif extent not in extents:
                extents.append(extent)

    def _join(self, extent: KvExtent) -> None:
        """Make one of two extents with the same states in other layers."""
        beside = self._extents[extent.start // self._block_tokens]
        for other in beside if len(beside) > 1 else ():
            spans = (other.start, other.stop) == (extent.start, extent.stop)
            if other is not extent and spans and other.at(other.stop - 1) == extent.at(extent.stop - 1):
                extent.layers = self._whole(other.layers | extent.layers)
                other.stop = other.start
                return


def in_sequence(states: "array[int]") -> Iterator[tuple[int, "array[int]"]]:
    """Cut states into parts that follow each other, each with its place; without zeros, which stand for nothing."""
    for start, stop in pairwise([0, *cuts(states), len(states)]):
        if states[start]:
            yield start, states[start:stop]
