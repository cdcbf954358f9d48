from collections.abc import Sequence

from livescale.load.bench.live.rows import LiveMeasurements, curve, rows
from livescale.load.bench.live.steps import Execution, LiveRun
from livescale.load.bench.record import Record
from livescale.load.records import RequestRecord
from livescale.shared.messages.transfers import LiveMode

LAYERS, ROWS = 4, 300
LAYER = 1.0  # seconds
LOAD = 2.0  # of a block


def record(index: int, at: float) -> RequestRecord:
    return RequestRecord(
        index=index, due=0.0, sent=0.0, ended=at, prompt_tokens=ROWS, asked_tokens=2, token_ids=[1, 2],
        token_at=[at, at + 0.5],
    )  # fmt: skip


def step(start: float, end: float, before: int = 0) -> Execution:
    return Execution("source", start, end, ROWS, ROWS * (LAYERS - before), ROWS * before, live=False)


def layer(start: float) -> Execution:
    return Execution("target", start, start + LAYER, ROWS, ROWS, 0, live=True)


def run(mode: LiveMode, firsts: Sequence[float], *executions: Execution) -> LiveRun:
    """A run of a model with embedding, four layers and head: a block every two seconds."""
    ready = [LOAD * number for number in range(1, LAYERS + 3)]
    records = [record(index, at) for index, at in enumerate(firsts)]
    return LiveRun(mode, "source", "target", 0.0, ready, records, executions)


OFF = run("off", [4.0, 8.0, 12.0, 16.0], step(0, 4), step(4, 8), step(8, 12), step(12, 16))
LIVE = run("zigzag", [4.0, 7.0, 9.0, 10.0], step(0, 4), *map(layer, range(4, 9)),
           step(4, 7, 1), step(7, 9, 2), step(9, 10, 3))  # fmt: skip


def done(live: LiveRun = LIVE) -> LiveMeasurements:
    runs: dict[LiveMode, list[LiveRun]] = {"off": [OFF], "best-effort": [OFF], "zigzag": [live]}
    return LiveMeasurements(
        block_bytes=[1] * (LAYERS + 2),
        layer=LAYER,
        long_layer=1.5 * LAYER,
        rate=1 / LOAD,
        runs=runs,
        streams=runs,
        quiet={"off": [2.0], "zigzag": [2.0]},
        hand_offs=[1.0, 1.2, 9.0],
        curve={6.0: runs},
    )


def told(made: LiveMeasurements) -> dict[str, Record]:
    return {one.case: one for one in (*rows(made), *curve(6.0, made.curve[6.0]))}
