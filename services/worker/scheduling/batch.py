"""One engine step: pieces of requests that run together. Made by the scheduler, carried out by the engine.

What there is one of for each row of each step is a Struct: those are made in a third of the time.
"""

from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct

from livescale.services.worker.kv.tiers import KvCopy
from livescale.shared.messages.requests import Sampling

# Prompts are cut at multiples of this, everywhere and always: the rows between attend together, and their bits depend
# on which these are.
PROMPT_CUT = 8
# Rows of a prompt in one piece, at most.
PREFILL_CHUNK = 128
# A step has no more rows, whatever is asked for: activations take memory.
MAX_BATCH_ROWS = 2_048
# Below this a temperature means greedy, as in vLLM: the division would overflow.
LEAST_TEMPERATURE = 1e-5
# In the place of an activation, KV or a block that is not there.
NO_BYTES = memoryview(b"")


class TokenSampling(Struct, frozen=True):
    """A token to choose after a piece's last row: generated token number `index`. None of `forbidden` may be chosen;
    `stops` are those that would end the request."""

    sampling: Sampling
    index: int
    forbidden: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature < LEAST_TEMPERATURE


@dataclass(frozen=True, eq=False)
class LayerEntry:
    """Where a request's rows come in when the layers before `layer` were run before, here or by another worker.

    `activation`: what `layer` takes for all positions before `stop`, `[position, hidden]`, as bytes.
    """

    layer: int
    stop: int
    activation: memoryview


@dataclass(frozen=True, eq=False)
class KvImport:
    """KV of a request's first `layers` layers, made by another worker, to go into `blocks` before anything is run."""

    request_id: str
    blocks: range
    layers: int
    data: memoryview


@dataclass(frozen=True)
class KvSlice:
    """KV of one request, which lies in `blocks`: of its positions `start` .. `stop` - 1 in `layers`."""

    blocks: range
    start: int
    stop: int
    layers: range


@dataclass(frozen=True)
class PrefixUse:
    """What comes of the prefix cache with a step: copies in this order. Of those that began, `queries` tokens were
    looked for, and `hits` of them were there, `fetched` of these in host memory."""

    copies: tuple[KvCopy, ...] = ()
    queries: int = 0
    hits: int = 0
    fetched: int = 0


class ScheduledChunk(Struct, frozen=True):
    """Positions `start` .. `stop` of one request; its KV lies in `blocks`, one contiguous stretch.

    A prompt's rows attend from cut to cut, whatever is in the piece. Generated positions (`decode`) attend row by row,
    however many there are: so a resumed request that replays them gets the bits it got when they were generated one by
    one.
    """

    request_id: str
    tokens: tuple[int, ...]
    start: int
    blocks: range
    decode: bool
    draw: TokenSampling | None = None
    entry: LayerEntry | None = None

    def __post_init__(self) -> None:
        fits_chunk = self.start % PROMPT_CUT == 0 and len(self.tokens) <= PREFILL_CHUNK
        if not self.tokens or not (self.decode or fits_chunk):
            raise ValueError(
                f"{self.request_id}: positions {self.start} .. {self.stop} are no chunk of a prompt: it begins at a"
                f" multiple of {PROMPT_CUT} and has 1 to {PREFILL_CHUNK} rows"
            )

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def layer(self) -> int:
        """The first layer that is to be run."""
        return 0 if self.entry is None else self.entry.layer


@dataclass(frozen=True)
class Batch:
    """The pieces of one step, in order of the layer at which they come in; those of one request in order of position.

    `preempted`: the requests that lost their KV blocks when the step was made. Copies come before imports.
    """

    step: int
    pieces: tuple[ScheduledChunk, ...]
    preempted: tuple[str, ...] = ()
    imports: tuple[KvImport, ...] = ()
    prefixes: PrefixUse = PrefixUse()

    @cached_property
    def prefill_rows(self) -> int:
        return sum(len(piece.tokens) for piece in self.pieces if not piece.decode)

    @cached_property
    def decode_rows(self) -> int:
        return sum(len(piece.tokens) for piece in self.pieces if piece.decode)

    @property
    def layers_before(self) -> int:
        """That others have run: of each row, added up."""
        return sum(len(piece.tokens) * piece.layer for piece in self.pieces)

    @cached_property
    def draws(self) -> tuple[TokenSampling, ...]:
        """What the step has to choose, in the order of the pieces."""
        return tuple(piece.draw for piece in self.pieces if piece.draw is not None)
