"""What was predicted of a plan beside what happened, in words."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.messages.transfers import Plan

UNKNOWN = "nothing is predicted without --link-rate or --topology: it is not known what links carry"


class Block(NamedTuple):
    """When a block was ready and should have been, in seconds since the first sender was told to send."""

    number: int
    took: float
    predicted: float


def tell_times(record: ScaleRecord, plan: Plan) -> Iterator[str]:
    """Of each target how long it took, in all and by block; then whether the times were predicted anew on the way."""
    begun = next((phase.at for phase in record.phases if phase.name == "commanded"), None)
    whole = {phase.node: phase.at for phase in record.phases if phase.name == "whole"}
    for target in (rank for instance in plan.instances for rank in instance.ranks):
        took = whole[target] - begun if begun is not None and target in whole else None
        yield f"{target} {tell_whole(took, plan.predicted.get(target))}"
        blocks = find_blocks(record.arrived.get(target, []), plan.predicted_blocks.get(target, []), begun)
        if blocks:
            yield f"  {tell_blocks(blocks)}"
    if plan.predicted:
        yield from tell_replans([phase for phase in record.phases if phase.name == "replanned"], begun)
    else:
        yield UNKNOWN


def tell_whole(took: float | None, predicted: float | None) -> str:
    told = "not whole" if took is None else f"whole after {took:.3f} s"
    if predicted is None:
        return f"{told}, nothing predicted"
    return f"{told}, {predicted:.3f} s predicted" + (f": {ratio(took, predicted)}" if took is not None else "")


def find_blocks(arrived: Sequence[float | None], predicted: Sequence[float | None], begun: float | None) -> list[Block]:
    """Those that arrived and were predicted, the first of them first."""
    both = enumerate(zip(arrived, predicted, strict=False))
    blocks = [
        Block(number, at - begun, expected)
        for number, (at, expected) in both
        if at is not None and expected is not None and begun is not None
    ]
    return sorted(blocks, key=lambda block: (block.took, block.number))


def tell_blocks(blocks: Sequence[Block]) -> str:
    """The first, the middle and the last of them, and the one that came farthest from its time."""
    shown = blocks if len(blocks) < 3 else [blocks[0], blocks[len(blocks) // 2], blocks[-1]]
    which = "" if shown is blocks else "; first, median, last"
    times = ", ".join(f"{block.took:.3f} for {block.predicted:.3f}" for block in shown)
    off = max(blocks, key=lambda block: (abs(block.took - block.predicted), block.number))
    farthest = f"block {off.number}: {off.took:.3f} for {off.predicted:.3f} s, {ratio(off.took, off.predicted)}"
    return f"{len(blocks)} block{'s' * (len(blocks) > 1)}{which} after {times} s; farthest off is {farthest}"


def tell_replans(replans: Sequence[Phase], begun: float | None) -> Iterator[str]:
    if replans:
        count = len({phase.at for phase in replans})
        times = f"{count} times" if count > 1 else "once"
        last = f", {replans[-1].at - begun:.3f} s after the first send" if begun is not None else ""
        yield f"times were predicted anew {times}, as the plan was made anew{last}: {replans[-1].detail}"


def ratio(took: float, predicted: float) -> str:
    return f"{took / predicted:.2f}x" if predicted > 0 else "no time was predicted"
