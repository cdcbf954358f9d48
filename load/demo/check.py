"""Whether every stream was complete and right."""

from collections.abc import Callable, Sequence
from pathlib import Path

from load.outcome import Verdict, find_faults
from load.records import Ask, RequestRecord
from shared.messages.parameters import DType

# How far the check has come is told this often, in shares of the whole.
STEPS = 4


def check_run(
    checkpoint: Path, dtype: DType, asks: Sequence[Ask], records: Sequence[RequestRecord], tell: Callable[[str], None]
) -> Verdict:
    """Completeness of all streams, rightness of all tokens that came; a prefill a stream, which blocks.

    On one thread: where other programs want the cores too, threads that wait for each other take ten times as long.
    """
    # transformers takes seconds to import, which nobody should pay before the system is even up.
    from load.rightness import Stream, check_streams

    prompts = {ask.index: ask.prompt for ask in asks}
    streams = [Stream(prompt=prompts[record.index], generated=record.token_ids) for record in records]

    def tell_progress(done: int, total: int) -> None:
        if done * STEPS // total > (done - 1) * STEPS // total:
            tell(f"  checked {done} of {total}")

    found = check_streams(checkpoint, streams, dtype, on_progress=tell_progress)
    return Verdict(
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


def describe_criterion(dtype: DType, band: float) -> str:
    return (
        "Complete: exactly the tokens asked for, in one stream, its end marked. Right: teacher-forced in transformers "
        f"in float32, each token (served in {dtype}) is the reference's choice or a tie within {band:.2g} standard "
        "deviations of the logits."
    )
