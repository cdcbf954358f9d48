"""Which rows run in the next step: decodes first, then prompts, which share what is left. Pure."""

from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass

from livescale.services.worker.batch import PREFILL_CHUNK, PROMPT_CUT, Piece
from livescale.services.worker.engine.rates import Pace
from livescale.services.worker.fairness import order, share_rows
from livescale.services.worker.limits import Limits
from livescale.services.worker.sequence import Sequence

Chosen = tuple[Sequence, Piece]


@dataclass(frozen=True)
class Room:
    """Rows of a step, and at which rows a chunk may be cut short so that it fits."""

    rows: int
    cut: int = PREFILL_CHUNK


def choose(ready: List[Sequence], requests: int, limits: Limits, pace: Pace, under_way: int = 0) -> Iterator[Chosen]:
    """Of those that may run, at most so many requests. `under_way`: decodes of a batch that is computed before this
    one: they come again after it, and so wait for it, too."""
    decoding = [sequence for sequence in ready if sequence.decodes][:requests]
    prefilling = sorted((sequence for sequence in ready if not sequence.decodes), key=order)
    prefilling = prefilling[: requests - len(decoding)]
    for sequence in decoding:
        yield sequence, sequence.decode()
    room = prompt_room(len(decoding) or under_way, len(prefilling), limits, pace)
    yield from share_rows(prefilling, room.rows, room.cut)


def prompt_room(decodes: int, prompts: int, limits: Limits, pace: Pace) -> Room:
    """For so many prompts beside so many decodes: as much as these take `tbt_ratio` times as long with as alone, as far
    as that is known, and no less than what lets both the first in the line gain and whoever has least left."""
    most = limits.max_num_batched_tokens - decodes
    if decodes and pace.is_stale:
        return Room(0)
    rows = pace.prompt_rows(decodes, limits.tbt_ratio) if decodes else most
    if rows >= most:
        return Room(most)
    return Room(max(int(rows), PROMPT_CUT * min(2, prompts)), PROMPT_CUT)
