"""What a PIPELINE may ask for, and batches between its stages: what a stage is told of the rows that it runs. Pure."""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from livescale.services.worker.scheduling.batch import (
    MAX_BATCH_ROWS,
    KvSlice,
    Past,
    ScheduledChunk,
    Scoring,
    TokenSampling,
    Withheld,
    activation_bytes,
)
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.model_parallel import (
    KvSpan,
    MoveKv,
    Pipeline,
    StageBatch,
    StageDone,
    StageFill,
    StagePiece,
)
from livescale.shared.messages.parameters import Manifest


def stage_pieces(pieces: Sequence[ScheduledChunk]) -> list[StagePiece]:
    """Return these pieces as stages are told of them."""
    return [_told(piece) for piece in pieces]


def batch_pieces(batch: StageBatch, manifest: Manifest, limits: SchedulerLimits) -> tuple[ScheduledChunk, ...]:
    """Return what a stage of a model of this manifest runs for `batch`.

    Raises ValueError, naming the field, for what could not be run here.
    """
    if batch.block_tokens != limits.kv_block_tokens:
        raise ValueError(f"block_tokens: KV blocks have {limits.kv_block_tokens} tokens here, not {batch.block_tokens}")
    rows = sum(len(piece.tokens) for piece in batch.pieces)
    if not 1 <= rows <= MAX_BATCH_ROWS:
        raise ValueError(f"pieces: they have {rows} rows, 1 to {MAX_BATCH_ROWS} can be run")
    expected = activation_bytes(manifest, rows) if batch.stage else 0
    if batch.activation_bytes != expected:
        raise ValueError(f"activation_bytes: {batch.activation_bytes}, {rows} rows have {expected}")
    return tuple(_piece(piece, limits) for piece in batch.pieces)


def fill_pieces(fill: StageFill, limits: SchedulerLimits) -> list[ScheduledChunk]:
    """Return the pieces that `fill` asks for. Raises ValueError, naming the field, for what could not be run here."""
    rows = sum(len(piece.tokens) for piece in fill.pieces)
    if rows > MAX_BATCH_ROWS:
        raise ValueError(f"fills: they have {rows} rows, at most {MAX_BATCH_ROWS} can be run")
    return [_piece(piece, limits) for piece in fill.pieces]


def withheld(done: StageDone) -> dict[int, Withheld]:
    """Return the places without a token, and why."""
    codes = done.codes or [Withheld().code] * len(done.withheld)
    return {place: Withheld(reason, code) for (place, reason), code in zip(done.withheld, codes, strict=False)}


def kv_spans(pieces: Sequence[ScheduledChunk]) -> list[KvSpan]:
    """Return which positions of which KV blocks `pieces` fill."""
    return [
        KvSpan(first_block=one.blocks.start, blocks=len(one.blocks), start=one.start, stop=one.stop) for one in pieces
    ]


def kv_slices(order: MoveKv, layers: Sequence[range], limits: SchedulerLimits) -> list[KvSlice]:
    """Return what `order` asks for of these layers. Raises ValueError, naming the field, for what is not here."""
    rows = sum(max(one.stop - one.start, 0) for one in order.spans)
    if not 1 <= rows <= MAX_BATCH_ROWS:
        raise ValueError(f"spans: they have {rows} positions, 1 to {MAX_BATCH_ROWS} can be moved")
    for one in order.spans:
        fits = one.start < one.stop <= one.blocks * limits.kv_block_tokens
        if not fits or one.first_block + one.blocks > limits.kv_blocks:
            raise ValueError(
                f"spans: positions {one.start} .. {one.stop - 1} do not fit into blocks {one.first_block} .. "
                f"{one.first_block + one.blocks - 1} of {limits.kv_blocks}"
            )
    return [
        KvSlice(range(one.first_block, one.first_block + one.blocks), one.start, one.stop, stretch)
        for stretch in layers
        for one in order.spans
    ]


def layers_of(command: Pipeline, worker: str) -> list[range]:
    """Return the layers of `worker`'s stages, which are the model's blocks without embedding and head."""
    head = command.stages[-1].stop - 1
    layers = (
        range(max(stage.first, 1) - 1, min(stage.stop, head) - 1) for stage in command.stages if stage.node.id == worker
    )
    return [one for one in layers if one]


def _told(piece: ScheduledChunk) -> StagePiece:
    told = StagePiece(
        request_id=piece.request_id,
        tokens=list(piece.tokens),
        start=piece.start,
        first_block=piece.blocks.start,
        blocks=len(piece.blocks),
        decode=piece.decode,
        adapter=piece.adapter,
    )
    if piece.scoring is not None:
        told = replace(told, following=list(piece.scoring.following), top=piece.scoring.top)
    if piece.sampling is None:
        return told
    sampling = piece.sampling
    past = sampling.past or Past()
    return replace(
        told,
        sampling=sampling.params,
        index=sampling.index,
        forbidden=list(sampling.forbidden),
        stops=list(sampling.stops),
        prompt=list(past.prompt),
        generated=list(past.generated),
    )


def _sampling(told: StagePiece) -> TokenSampling | None:
    if told.sampling is None:
        return None
    past = Past(tuple(told.prompt), tuple(told.generated)) if told.sampling.needs_past else None
    return TokenSampling(told.sampling, told.index, tuple(told.forbidden), tuple(told.stops), past)


def _piece(told: StagePiece, limits: SchedulerLimits) -> ScheduledChunk:
    scoring = Scoring(tuple(told.following), told.top) if told.following else None
    blocks = range(told.first_block, told.first_block + told.blocks)
    piece = ScheduledChunk(
        told.request_id,
        tuple(told.tokens),
        told.start,
        blocks,
        told.decode,
        _sampling(told),
        None,
        scoring,
        limits.encodes,
        told.adapter,
    )
    room = min(told.blocks * limits.kv_block_tokens, limits.max_model_len)
    if piece.stop > room or blocks.stop > limits.kv_blocks:
        raise ValueError(
            f"pieces: positions before {piece.stop} of {told.request_id} do not fit into blocks {blocks.start} .. "
            f"{blocks.stop - 1} of {limits.kv_blocks}"
        )
    if len(told.following) > len(told.tokens):
        raise ValueError(f"pieces: {len(told.following)} tokens follow {len(told.tokens)} of {told.request_id}")
    named = [] if told.sampling is None else told.sampling.named_tokens
    so_far = *told.prompt, *told.generated, *told.following
    never = max((*told.tokens, *told.forbidden, *so_far, *named), default=0)
    if never >= limits.vocab_size:
        raise ValueError(f"pieces: token id {never} is not in the vocabulary of {limits.vocab_size}")
    return piece


def check_pipeline(command: Pipeline, worker: str, manifest: Manifest, ready: Collection[int], kv_blocks: int) -> None:
    """Check that a `worker` which has these blocks `ready` can take part.

    Raises Refusal: 400 for stages that are no pipeline of this model, 409 for what is not here.
    """
    if command.version != manifest.version:
        raise Refusal(409, f"version: this worker loads {manifest.version}, not {command.version}")
    edges = [0, *(stage.stop for stage in command.stages)]
    starts = [*(stage.first for stage in command.stages), len(manifest.blocks)]
    if edges != starts or any(stage.first >= stage.stop for stage in command.stages):
        raise Refusal(400, f"stages: they begin at {starts[:-1]} and end at {edges[1:]} of {len(manifest.blocks)}")
    if any(one.node.id == other.node.id for one, other in pairwise(command.stages)):
        raise Refusal(400, "stages: two neighbours are of one worker")
    missing = sorted(_needed(command, worker, manifest) - set(ready))
    if missing:
        raise Refusal(409, f"stages: block {missing[0]} is not ready here")
    if command.kv_blocks > kv_blocks:
        raise Refusal(409, f"kv_blocks: there are {kv_blocks} here, not {command.kv_blocks}")


def _needed(command: Pipeline, worker: str, manifest: Manifest) -> set[int]:
    mine = [stage for stage in command.stages if stage.node.id == worker]
    if len(command.stages) < 2 or not mine:
        raise Refusal(400, f"stages: {len(command.stages)} of them, and {len(mine)} of {worker}")
    blocks = {block for stage in mine for block in range(stage.first, stage.stop)}
    has_head = mine[-1].stop == len(manifest.blocks)
    return blocks | {0} if has_head and manifest.config.tie_word_embeddings else blocks


MOST_TOKENS = 2 << 20  # that are remembered, of all requests


@dataclass(frozen=True)
class ToldPast:
    """What was told of a request: its prompt, each token once, and the tokens that were generated."""

    prompt: list[int]
    generated: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.generated)


class PastWindow:
    """The pasts of the requests that were drawn for last, at most `most_tokens` of them.

    The leader has one, which shortens pieces, and the last stage has one, which makes them whole again. Both see the
    same pieces in the same order, so they remember and forget the same.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._pasts: OrderedDict[str, ToldPast] = OrderedDict()
        self._tokens = 0

    def shorten(self, pieces: Sequence[StagePiece]) -> list[StagePiece]:
        """The pieces without what the last stage knows already."""
        return [self._shortened(piece) for piece in pieces]

    def complete(self, pieces: Sequence[StagePiece]) -> list[StagePiece]:
        """The pieces as they were before they were shortened. Raises ValueError where something is not known here."""
        return [self._completed(piece) for piece in pieces]

    def _shortened(self, piece: StagePiece) -> StagePiece:
        if not _has_past(piece):
            return piece
        told = self._pasts.get(piece.request_id)
        self._remember(piece)
        known = 0 if told is None else len(told.generated)
        if not 0 < known <= len(piece.generated):
            return piece
        return replace(piece, known=known, prompt=[], generated=piece.generated[known:])

    def _completed(self, piece: StagePiece) -> StagePiece:
        if piece.known:
            told = self._pasts.get(piece.request_id)
            if told is None or len(told.generated) < piece.known:
                raise ValueError(f"pieces: {piece.known} generated tokens of {piece.request_id} are not known here")
            generated = [*told.generated[: piece.known], *piece.generated]
            piece = replace(piece, known=0, prompt=told.prompt, generated=generated)
        if _has_past(piece):
            self._remember(piece)
        return piece

    def _remember(self, piece: StagePiece) -> None:
        """Remember what a whole piece says, in place of what was used less recently."""
        before, now = self._pasts.pop(piece.request_id, None), ToldPast(piece.prompt, piece.generated)
        self._pasts[piece.request_id] = now
        self._tokens += len(now) - (0 if before is None else len(before))
        while self._tokens > self._most_tokens and len(self._pasts) > 1:
            _, dropped = self._pasts.popitem(last=False)
            self._tokens -= len(dropped)


def _has_past(piece: StagePiece) -> bool:
    return piece.sampling is not None and bool(piece.prompt or piece.generated)
