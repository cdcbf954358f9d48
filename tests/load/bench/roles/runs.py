from collections.abc import Sequence

from livescale.load.bench.record import Record
from livescale.load.bench.roles.rows import (
    KvSizes,
    MixedRun,
    Placing,
    RolesMeasurements,
    exposed_rows,
    mixed_rows,
    sending_rows,
    switch_rows,
)
from livescale.load.records import RequestRecord

KIB = 1024


def stream(index: int, first: float, *gaps: float) -> RequestRecord:
    """A stream whose request was due at 0."""
    token_at = [first]
    for gap in gaps:
        token_at.append(token_at[-1] + gap)
    return RequestRecord(
        index=index, due=0.0, sent=0.0, ended=token_at[-1], prompt_tokens=384, asked_tokens=len(token_at),
        token_at=token_at,
    )  # fmt: skip


def run(placing: Placing, first: float, gap: float, *pauses: float, moved: float = 0.0) -> MixedRun:
    """A stream under way as roles change at 10, with these pauses afterwards."""
    records = [stream(0, first, *[gap] * 200), stream(1, 9.0, 1.5, *pauses)]
    return MixedRun(placing, 10.0, records, [0.02, 0.03, 0.9], given=2.0, moved=moved)


RUNS = [run("apart", 1.0, 0.1), run("colocated", 1.0, 0.2), run("switched", 1.0, 0.1, 0.2)]


def done(mixed: Sequence[MixedRun] = RUNS) -> RolesMeasurements:
    """Of a model with ten layers of 1 KiB a position: a piece has one layer at least 256 positions long."""
    return RolesMeasurements(
        kv=KvSizes(10, KIB),
        prefill=1.0,
        rate=384 * KIB / 0.05,
        last_rows=384,
        exposed=[0.06, 0.07, 5.0],
        by_request=[0.5, 0.5, 0.6],
        sending=[970.0, 980.0, 990.0],
        unsent=[1000.0, 1000.0, 1.0],
        mixed=[*mixed],
        switches=[0.01] * 19 + [0.2],
    )


def told(made: RolesMeasurements) -> dict[str, Record]:
    records = (*exposed_rows(made), *sending_rows(made), *mixed_rows(made), *switch_rows(made))
    return {one.case: one for one in records}
