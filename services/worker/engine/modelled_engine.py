"""The state of a modelled engine: which blocks came, what is in its KV cache, and which tokens follow from that.

KV outside of the cache lies in the host's memory, or in that of a simulation, which takes no room.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from msgspec.structs import replace

from livescale.services.worker.engine.contract import BlockMissing, LayerwiseRun, StageResult, begin_layer, zeros
from livescale.services.worker.engine.modelled_kv import ModelledKv
from livescale.services.worker.engine.modelled_states import StateMemory, read_states, write_states
from livescale.services.worker.engine.modelled_steps import (
    STATE_BYTES,
    choose_token,
    damaged,
    even_logprobs,
    first_state,
    follow,
    follows,
    made_up_vector,
    prompt_states,
)
from livescale.services.worker.scheduling.batch import (
    NO_BYTES,
    Batch,
    Chosen,
    KvCopy,
    KvPiece,
    KvSlice,
    ScheduledChunk,
    activation_bytes,
    kv_bytes,
    slice_bytes,
)
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.requests import TokenLogprobs


def export(kv: ModelledKv, slots: range, layers: range, data: StateMemory) -> None:
    """Write what `layers` have in `slots` into `data`, which is all 0, each layer's part as long as the others'."""
    for place, states in kv.export(slots, layers, data.nbytes // len(layers)):
        data[place : place + len(states)] = states


def take(kv: ModelledKv, slots: range, layers: range, data: StateMemory) -> None:
    """Store what `export` wrote for as many slots of these layers."""
    kv.take(slots, layers, _parts(len(layers), len(slots) * STATE_BYTES, data))


def _parts(count: int, size_bytes: int, data: StateMemory) -> Iterator[bytes]:
    """The first bytes of each of `count` parts."""
    for number in range(count):
        start = number * (data.nbytes // count)
        yield bytes(data[start : start + size_bytes])


OnMissing = Callable[[ScheduledChunk, range], None]


class ModelledEngine:
    """The blocks that came, and what is in the KV cache."""

    def __init__(
        self,
        manifest: Manifest,
        kv_blocks: int,
        block_tokens: int,
        host_blocks: int = 0,
        on_missing: OnMissing = lambda chunk, layers: None,
        new_memory: Callable[[int], StateMemory] = zeros,
        *,
        ends: bool = False,
    ) -> None:
        """`on_missing` is called with a chunk and layers that attended to something else than the request's KV.
        Exported KV and activations of single layers go into `new_memory`. An engine that `ends` answers may choose
        tokens that end them; else each is as long as it may be."""
        self.layers = manifest.config.num_hidden_layers
        self._manifest = manifest
        self._block_tokens = block_tokens
        self._missing = set(range(len(manifest.blocks)))
        self._kv = ModelledKv(self.layers, kv_blocks, block_tokens, host_blocks)
        self._on_missing = on_missing
        self._new_memory = new_memory
        self._ends = ends

    def add_block(self, index: int) -> None:
        if not 0 <= index < len(self._manifest.blocks):
            raise ValueError(f"the model has blocks 0 to {len(self._manifest.blocks) - 1}, not {index}")
        self._missing.discard(index)

    def step(self, batch: Batch) -> Chosen:
        """Returns what is chosen for the samplings of `batch`."""
        self._need(range(len(self._manifest.blocks)))
        self.lay_down(batch.prefixes.copies, ())
        for kv in batch.imports:
            take(self._kv, self._kv.slots(kv.blocks), range(kv.layers), kv.data)
        return self._choose((self._enter(chunk)[-1], chunk) for chunk in batch.chunks)

    def run_blocks(self, blocks: range, chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        """Run a part of the model. Only the first of several ranks receives the activation."""
        self._need(blocks)
        layers = range(max(blocks.start - 1, 0), min(blocks.stop - 1, self.layers))
        rows = sum(len(chunk.tokens) for chunk in chunks)
        came = read_states(activation, rows) if blocks.start and self._leads else None
        states, ends = array("Q"), []
        for chunk in chunks:
            start = len(states)
            stop = start + len(chunk.tokens)
            states += self._run(chunk, layers, None if came is None else came[start:stop])
            ends.append((states[-1], chunk))
        if blocks.stop < len(self._manifest.blocks):
            data = memoryview(bytearray(activation_bytes(self._manifest, rows)))
            write_states(data, states)
            return StageResult(data)
        return StageResult(NO_BYTES, self._choose(ends))

    def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        """The embedding runs with the first layer. Raises ValueError for requests that stand at different layers."""
        layer = partials[0].done
        self._need((layer + 1,) if layer else (0, 1))
        row_bytes = activation_bytes(self._manifest, 1) if self._leads else STATE_BYTES  # of others nothing is read
        begin_layer(partials, row_bytes, self._new_memory)
        for partial in partials:
            if not (layer and self._leads and self._pass_on(partial)):
                self._run_chunks(partial)
            partial.done += 1

    def _pass_on(self, partial: LayerwiseRun) -> bool:
        """Run the next layer of all rows at once, where they are as the layer before has left them here: then they stay
        so, as nearly always. Returns whether they were."""
        first, mask = partial.chunks[0], self._kv.mask(range(partial.done, partial.done + 1))
        begin = first.blocks.start * self._block_tokens
        slots = range(begin + first.start, begin + partial.chunks[-1].stop)
        states = self._kv.read(slots, partial.done - 1)
        before = self._kv.last(range(begin, slots.start), mask, self._origin(first))
        if states is None or before is None or not follows(before, states[0]):
            return False
        if read_states(partial.activation, len(slots)) != states:
            return False
        self._kv.write(slots.start, states, mask)
        return True

    def _run_chunks(self, partial: LayerwiseRun) -> None:
        """Run the next layer of each chunk by itself."""
        layer = partial.done
        for chunk, activation in partial.parts():
            came = read_states(activation, len(chunk.tokens)) if layer and self._leads else None
            states = self._run(chunk, range(layer, layer + 1), came)
            if states != came:
                write_states(activation, states)

    def export_kv(self, blocks: range, layers: int) -> StateMemory:
        tokens = len(blocks) * self._block_tokens
        data = self._new_memory(kv_bytes(self._manifest, tokens, layers, self._block_tokens))
        export(self._kv, self._kv.slots(blocks), range(layers), data)
        return data

    def export_slices(self, slices: Sequence[KvSlice], spare_bytes: int = 0) -> memoryview:
        data = self._new_memory(self._slices_bytes(slices) + spare_bytes)
        for one, part in self._parts(slices, data):
            export(self._kv, self._kv.slots(one.blocks)[one.start : one.stop], one.layers, part)
        return cast("memoryview", data)  # only a modelled engine has other memory, and knows it

    def import_slices(self, slices: Sequence[KvSlice], data: StateMemory) -> None:
        """Raises ValueError for a wrong number of bytes."""
        expected = self._slices_bytes(slices)
        if data.nbytes != expected:
            raise ValueError(f"{len(slices)} slices are {expected} bytes of KV, not {data.nbytes}")
        for one, part in self._parts(slices, data):
            take(self._kv, self._kv.slots(one.blocks)[one.start : one.stop], one.layers, part)

    def lay_down(self, copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
        """Make copies that are due, then store pieces. Raises ValueError for a wrong number of bytes."""
        for copy in copies:
            self._kv.copy(self._kv.slots(copy.source), self._kv.slots(copy.target))
        for one, data in pieces:
            self.import_slices([one], data)

    @property
    def _leads(self) -> bool:
        """Whether this rank has activations; it is told no others' when it is led."""
        return self._manifest.shard == 0

    def _origin(self, chunk: ScheduledChunk) -> int:
        """The state before the first token of a request."""
        return first_state(self._manifest.version, chunk.adapter)

    def _slices_bytes(self, slices: Sequence[KvSlice]) -> int:
        return sum(slice_bytes(self._manifest, one) for one in slices)

    def _parts(self, slices: Sequence[KvSlice], data: StateMemory) -> Iterator[tuple[KvSlice, StateMemory]]:
        start = 0
        for one in slices:
            stop = start + slice_bytes(self._manifest, one)
            yield one, data[start:stop]
            start = stop

    def _enter(self, chunk: ScheduledChunk) -> "array[int]":
        """Run all layers that are left of `chunk`."""
        if chunk.decode and not chunk.layer and chunk.entry is None:
            first = chunk.blocks.start * self._block_tokens
            states = self._kv.go_on(first, first + chunk.start, self._origin(chunk), chunk.tokens)
            if states is not None:
                return states
        came = None
        if chunk.entry is not None and self._leads:
            row_bytes = activation_bytes(self._manifest, 1)
            rows = chunk.entry.activation[chunk.start * row_bytes : chunk.stop * row_bytes]
            came = read_states(rows, len(chunk.tokens))
        return self._run(chunk, range(chunk.layer, self.layers), came)

    def _run(self, chunk: ScheduledChunk, layers: range, came: "array[int] | None") -> "array[int]":
        """Run `layers` of `chunk`, whose rows come with the states `came` from the layer before. Returns their states.

        They depend on what these layers attend to in the cache, and go into it.
        """
        kv, mask = self._kv, self._kv.mask(layers)
        first = chunk.blocks.start * self._block_tokens
        slots = range(first + chunk.start, first + chunk.stop)
        before = kv.last(range(first, slots.start), mask, self._origin(chunk))
        if before is None:
            self._on_missing(chunk, layers)
            states = damaged(chunk.tokens)
        elif came is not None and layers.start and came == kv.read(slots, layers.start - 1):
            states = came  # as this worker has made them
        else:
            states = array("Q", follow(before, chunk.tokens)) if chunk.decode else prompt_states(before, chunk.tokens)
            if came is not None and came != states:
                self._on_missing(chunk, layers)
                states = damaged(chunk.tokens)
        kv.write(slots.start, states, mask)
        return states

    def _choose(self, ends: Iterable[tuple[int, ScheduledChunk]]) -> Chosen:
        """Choose a token for each chunk that samples one, by the state of its last token."""
        vocab_size, tokens, logprobs = self._manifest.config.vocab_size, list[int](), dict[int, TokenLogprobs]()
        prompts = dict[int, list[TokenLogprobs]]()
        for number, (state, chunk) in enumerate(ends):
            sampling, scoring = chunk.sampling, chunk.scoring
            if scoring is not None:
                prompts[number] = [even_logprobs(token, scoring.top, vocab_size) for token in scoring.following]
            if sampling is None:
                continue
            token = choose_token(state, sampling, vocab_size, ends=self._ends)
            if sampling.params.pools:
                size = self._manifest.config.labels or self._manifest.config.hidden_size
                logprobs[len(tokens)] = TokenLogprobs(0.0, pooled=made_up_vector(state, size))
            elif sampling.params.logprobs is not None:
                told = even_logprobs(token, sampling.params.logprobs, vocab_size)
                named = [(id, told.chosen) for id in sampling.params.logprob_token_ids]
                logprobs[len(tokens)] = replace(told, top=named) if named else told
            tokens.append(token)
        return Chosen(tokens, logprobs, prompts)

    def _need(self, blocks: Iterable[int]) -> None:
        missing = next((block for block in blocks if block in self._missing), None)
        if missing is not None:
            raise BlockMissing(f"cannot run: block {missing} ({self._manifest.blocks[missing].name}) was not added")
