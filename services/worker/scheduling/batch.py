"""One engine step as data: chunks of requests that run together. The scheduler makes it, the engine carries it out.

Types of which a step has one for each row are Structs, as these take a third of the time to make. Some of their fields
have other names in what the leading rank sends to the others: those names are kept for ranks of earlier releases.
"""

from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct, field

from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.requests import Sampling, TokenLogprobs, Tokens
from livescale.shared.model.block_layout import ITEM_BYTES, kv_item_bytes
from livescale.shared.model.sharding import shard_config

# Prompts are cut at multiples of this, everywhere and always: the rows between attend together, and their bits depend
# on which these are.
PROMPT_CUT = 8
# A chunk of a prompt has no more rows than this.
PREFILL_CHUNK = 128
# A step has no more rows, whatever is asked for: activations take memory.
MAX_BATCH_ROWS = 2_048
# Below this a temperature means greedy, as in vLLM: the division would overflow.
LEAST_TEMPERATURE = 1e-5
# Stands for an activation, KV or a block that is not there.
NO_BYTES = memoryview(b"")
SPARE_BYTES = 8  # behind the bytes of each piece of KV that leaves in a step, for its digest


@dataclass(frozen=True)
class KvCopy:
    """A copy of the KV of all layers from the blocks `source` into as many other blocks, `target`, before a step runs.

    Negative numbers are blocks in host memory, in which nothing is computed.
    """

    source: range
    target: range


class Past(Struct, frozen=True):
    """The tokens of a request so far: those of the prompt, each once, and all that were generated, in order. Either is
    empty where the choice of the next token does not depend on it."""

    prompt: tuple[int, ...] = ()
    generated: tuple[int, ...] = ()


class TokenSampling(Struct, frozen=True):
    """How a token is chosen after a chunk's last row.

    It becomes generated token number `index`. None of `forbidden` may be chosen; any of `stops` would end the request.
    `past` is there where the choice depends on it.
    """

    params: Sampling = field(name="sampling")
    index: int
    forbidden: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    past: Past | None = None

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < LEAST_TEMPERATURE


class Withheld(Struct, frozen=True):
    """Why a sampling got no token: the `reason` why its request ends, with the `code` of its last row of tokens; or no
    reason, and the step is to be made again."""

    reason: str = ""
    code: int = 422


class Chosen(Struct, frozen=True):
    """The token of each sampling of a step, in their order, and by place the log-probabilities that were asked for:
    those of prompts by the place of the chunk.

    `withheld` are the places without a token, whatever `tokens` say.
    """

    tokens: list[int]
    logprobs: dict[int, TokenLogprobs] = {}
    prompts: dict[int, list[TokenLogprobs]] = {}
    withheld: dict[int, Withheld] = {}


NOTHING_CHOSEN = Chosen([])


class TokenOutput(Struct, frozen=True):
    """A row of the next token frame to `gateway`. It has a finish reason if the request has left the scheduler."""

    gateway: str
    row: Tokens


@dataclass(frozen=True, eq=False)
class LayerEntry:
    """Where a request's rows enter the model when the layers before `layer` have run already, here or elsewhere.

    `activation` is the input of `layer` for all positions before `stop`: `[position, hidden]`, as bytes. `left` is the
    share of the model that is still to run, see `share_left`.
    """

    layer: int
    stop: int
    activation: memoryview
    left: float = 1.0


def share_left(layer: int, layers: int) -> float:
    """The share of a model of so many layers that is left from `layer` on. The head counts as one more layer, so that
    some is always left."""
    return (layers + 1 - layer) / (layers + 1)


@dataclass(frozen=True, eq=False)
class KvImport:
    """KV of a request's first `layers` layers from another worker, which goes into `blocks` before the step runs."""

    request_id: str
    blocks: range
    layers: int
    data: memoryview


@dataclass(frozen=True)
class KvSlice:
    """A part of one request's KV: positions `start` to `stop` - 1 in `layers`. The request's KV lies in `blocks`."""

    blocks: range
    start: int
    stop: int
    layers: range


# A part of a request's KV, and its bytes.
KvPiece = tuple[KvSlice, memoryview]


class KvExport(Struct, frozen=True):
    """KV that leaves while a step computes it: positions `start` to `stop` - 1 of a request, whose KV lies in `blocks`.

    Each of `pieces`, which are ranges of layers, is copied as soon as its last layer has run, with `SPARE_BYTES` more
    behind it. `ticket` names the transfer that it belongs to.
    """

    ticket: int
    blocks: range
    start: int
    stop: int
    pieces: tuple[range, ...]

    def slice(self, layers: range) -> KvSlice:
        """The KV of one of the `pieces`, as the engine copies it out."""
        return KvSlice(self.blocks, self.start, self.stop, layers)


@dataclass(frozen=True)
class PrefixUse:
    """What the prefix cache contributes to a step. `copies` are made in this order. For the requests that began,
    `queries` tokens were looked up and `hits` were found, `fetched` of these in host memory."""

    copies: tuple[KvCopy, ...] = ()
    queries: int = 0
    hits: int = 0
    fetched: int = 0


class Scoring(Struct, frozen=True):
    """It is told how likely the `following` tokens are, each after one of a chunk's first rows, and `top` of the
    likeliest."""

    following: tuple[int, ...]
    top: int


class ScheduledChunk(Struct, frozen=True):
    """Positions `start` to `stop` - 1 of one request, whose KV lies in `blocks`, one contiguous stretch.

    A prompt's rows attend from cut to cut, whatever else is in the chunk. Generated positions (`decode`) attend row by
    row, however many there are. So a resumed request that replays them gets the bits that they had when they were
    generated one by one. The rows of a `whole` prompt see each other. `adapter` is the version of the adapter that they
    use. `pixels` are those of the image that the prompt is.
    """

    request_id: str
    tokens: tuple[int, ...]
    start: int
    blocks: range
    decode: bool
    sampling: TokenSampling | None = field(default=None, name="draw")
    entry: LayerEntry | None = None
    scoring: Scoring | None = None
    whole: bool = False
    adapter: str | None = None
    pixels: bytes = b""

    def __post_init__(self) -> None:
        fits_chunk = self.start % PROMPT_CUT == 0 and len(self.tokens) <= PREFILL_CHUNK
        if self.whole:
            fits_chunk = self.start == 0 and len(self.tokens) <= MAX_BATCH_ROWS and not self.decode
        if not self.tokens or not ((self.decode and not self.whole) or fits_chunk):
            raise ValueError(
                f"{self.request_id}: positions {self.start} .. {self.stop} are no chunk of a prompt: it begins at a"
                f" multiple of {PROMPT_CUT} and has 1 to {PREFILL_CHUNK} rows, or is all of it"
            )

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def last_cut(self) -> int:
        """The position from which as little as can be is run again, for another choice after the last row."""
        if self.whole or self.decode:
            return self.start if self.whole else self.stop - 1
        return (self.stop - 1) // PROMPT_CUT * PROMPT_CUT

    @property
    def layer(self) -> int:
        """The first layer that these rows still have to run through."""
        return 0 if self.entry is None else self.entry.layer

    @property
    def work(self) -> float:
        """How many rows that run through all layers take as long as these."""
        return len(self.tokens) * (1.0 if self.entry is None else self.entry.left)


class Batch(Struct, frozen=True, dict=True):
    """The chunks of one step, in order of the layer at which they enter; those of one request in order of position.

    `preempted` names the requests that lost their KV blocks when the step was made. The copies of `prefixes` are made
    before `imports` are stored. `exports` leave while the step is computed.
    """

    step: int
    chunks: tuple[ScheduledChunk, ...] = field(name="pieces")
    preempted: tuple[str, ...] = ()
    imports: tuple[KvImport, ...] = ()
    prefixes: PrefixUse = PrefixUse()
    exports: tuple[KvExport, ...] = ()

    @cached_property
    def prefill_rows(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks if not chunk.decode)

    @cached_property
    def decode_rows(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks if chunk.decode)

    @cached_property
    def leaving(self) -> dict[int, list[tuple[KvExport, range]]]:
        """The pieces of `exports` by the layer after which each leaves."""
        pieces: dict[int, list[tuple[KvExport, range]]] = {}
        for export in self.exports:
            for layers in export.pieces:
                pieces.setdefault(layers.stop - 1, []).append((export, layers))
        return pieces

    @property
    def layers_before(self) -> int:
        """Layers that ran before the rows came here, added up over all rows."""
        return sum(len(chunk.tokens) * chunk.layer for chunk in self.chunks)

    @cached_property
    def samplings(self) -> tuple[TokenSampling, ...]:
        """What the step has to sample, in the order of its chunks."""
        return tuple(chunk.sampling for chunk in self.chunks if chunk.sampling is not None)


def activation_bytes(manifest: Manifest, positions: int) -> int:
    """The size of an activation `[position, hidden]`."""
    return positions * manifest.config.hidden_size * ITEM_BYTES[manifest.dtype]


def block_bytes(manifest: Manifest, block_tokens: int) -> int:
    """The size of one block of the KV cache, over all layers."""
    return kv_bytes(manifest, block_tokens, manifest.config.num_hidden_layers, block_tokens)


def kv_bytes(manifest: Manifest, positions: int, layers: int, block_tokens: int) -> int:
    """The size of KV in whole blocks, `[layer, part, kv_head, token, head_dim]`; of several ranks, what each has."""
    config = shard_config(manifest.config, manifest.shard, manifest.shards)
    tokens = -(-positions // block_tokens) * block_tokens
    heads = config.kv_parts * config.num_key_value_heads
    return layers * heads * tokens * config.head_dim * kv_item_bytes(config, manifest.dtype)


def slice_bytes(manifest: Manifest, one: KvSlice) -> int:
    """The size of a slice, `[layer, part, kv_head, position, head_dim]`: its positions only, no whole blocks."""
    return kv_bytes(manifest, one.stop - one.start, len(one.layers), block_tokens=1)
