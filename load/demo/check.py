"""Checks that every stream of the demo is complete, and that its tokens are right."""

from collections.abc import Callable, Sequence
from pathlib import Path

from livescale.load.outcome import StreamsVerdict, find_faults
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.story import Newcomer, request_id
from livescale.shared.messages.parameters import DType

# How far the check has come is told this often, in shares of the whole.
STEPS = 4
# Asked again in the end: enough for every way in which a request may have been served, and done in some seconds.
AGAIN = 8


def check_run(
    checkpoint: Path, dtype: DType, asks: Sequence[Ask], records: Sequence[RequestRecord], tell: Callable[[str], None]
) -> StreamsVerdict:
    """Completeness of all streams, rightness of all tokens that came; a prefill a stream, which blocks.

    On one thread: where other programs want the cores too, threads that wait for each other take ten times as long.
    """
    # transformers takes seconds to import, so it is not imported before the system is up.
    from livescale.load.rightness import CheckedStream, check_streams

    prompts = {ask.index: ask.prompt for ask in asks}
    streams = [CheckedStream(prompt=prompts[record.index], generated=record.token_ids) for record in records]

    def tell_progress(done: int, total: int) -> None:
        if done * STEPS // total > (done - 1) * STEPS // total:
            tell(f"  checked {done} of {total}")

    found = check_streams(checkpoint, streams, dtype, on_progress=tell_progress)
    return StreamsVerdict(
        streams=len(asks),
        faults=find_faults(records, len(asks)),
        tokens=found.tokens,
        wrong=[
            f"request {records[token.stream].index}: token {token.index} is {token.token}, the reference has "
            f"{token.expected}, {token.regret:.2g} standard deviations of the logits above it"
            for token in found.wrong
        ],
        ties=found.ties,
        ties_allowed=found.ties_allowed,
        criterion=describe_criterion(dtype, found.band),
    )


def choose_again(
    asks: Sequence[Ask], records: Sequence[RequestRecord], newcomers: Sequence[Newcomer], most: int = AGAIN
) -> list[Ask]:
    """Requests that ended well: first those that changed hands while parameters arrived, then as many over the whole
    time as there is room for."""
    moved = {each.request_id for newcomer in newcomers for each in newcomer.hand_offs}
    complete = {record.index: request_id(record) in moved for record in records if find_fault(record) is None}
    shared = [ask for ask in asks if complete.get(ask.index)][:most]
    others = [ask for ask in asks if complete.get(ask.index) is False]
    room = min(most - len(shared), len(others))
    return [*shared, *(others[number * len(others) // room] for number in range(room))]


def compare_again(records: Sequence[RequestRecord], again: Sequence[RequestRecord]) -> list[str]:
    """A line for each of `again` that is not, token by token, what it was."""
    before = {record.index: record.token_ids for record in records}
    changed = []
    for record in again:
        if fault := find_fault(record):
            changed.append(f"request {record.index}, asked again: {fault}")
        elif record.token_ids != before[record.index]:
            pairs = enumerate(zip(before[record.index], record.token_ids, strict=True))
            index, (was, now) = next((index, pair) for index, pair in pairs if pair[0] != pair[1])
            changed.append(f"request {record.index}: token {index} was {was}, and is {now} when asked undisturbed")
    return changed


def describe_criterion(dtype: DType, band: float) -> str:
    return (
        "Complete: exactly the tokens asked for, in one stream, its end marked. Right: teacher-forced in transformers "
        f"in float32, each token (served in {dtype}) is the reference's choice or a tie within {band:.2g} standard "
        "deviations of the logits."
    )
