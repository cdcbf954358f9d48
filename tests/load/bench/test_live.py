"""`livescale bench live`: what it reads from logs, what it says of runs, and all of it with a small model."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.load.bench.live import command as bench
from livescale.load.bench.live.page import render_live
from livescale.load.bench.live.rows import Measured, curve, executed, predicted, rows, second_half, whole_second_half
from livescale.load.bench.live.steps import Execution, Run, StepLog, read_execution
from livescale.load.bench.record import Record
from livescale.load.bench.samples import BenchFailed
from livescale.load.kept import kept_model
from livescale.load.records import RequestRecord
from livescale.shared.messages.transfers import LiveMode
from tests.load.bench.printed import CONDITIONS, records_in

LAYERS, ROWS = 4, 300
LAYER = 1.0  # seconds
LOAD = 2.0  # of a block
AT = "2026-01-02T03:04:05.500000Z [debug    ] "
NOW = 1767323045.5


def record(index: int, at: float) -> RequestRecord:
    return RequestRecord(
        index=index, due=0.0, sent=0.0, ended=at, prompt_tokens=ROWS, asked_tokens=2, token_ids=[1, 2],
        token_at=[at, at + 0.5],
    )  # fmt: skip


def step(start: float, end: float, before: int = 0) -> Execution:
    return Execution("source", start, end, ROWS, ROWS * (LAYERS - before), ROWS * before, live=False)


def layer(start: float) -> Execution:
    return Execution("target", start, start + LAYER, ROWS, ROWS, 0, live=True)


def run(mode: LiveMode, firsts: Sequence[float], *executions: Execution) -> Run:
    """Embedding, four layers, head: a block every two seconds."""
    ready = [LOAD * number for number in range(1, LAYERS + 3)]
    records = [record(index, at) for index, at in enumerate(firsts)]
    return Run(mode, "source", "target", 0.0, ready, records, executions)


OFF = run("off", [4.0, 8.0, 12.0, 16.0], step(0, 4), step(4, 8), step(8, 12), step(12, 16))
LIVE = run("zigzag", [4.0, 7.0, 9.0, 10.0], step(0, 4), *map(layer, range(4, 9)),
           step(4, 7, 1), step(7, 9, 2), step(9, 10, 3))  # fmt: skip


def done(live: Run = LIVE) -> Measured:
    runs: dict[LiveMode, list[Run]] = {"off": [OFF], "best-effort": [OFF], "zigzag": [live]}
    return Measured(
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


def told(made: Measured) -> dict[str, Record]:
    return {one.case: one for one in (*rows(made), *curve(6.0, made.curve[6.0]))}


def test_steps_and_layers_are_read_from_logs() -> None:
    line = f"{AT}step_ran    id=worker-0 layers_before=600 rows=300 seconds=1.5 service=worker step=7"
    assert read_execution("worker-0", line, LAYERS) == Execution("worker-0", NOW - 1.5, NOW, 300, 600, 600, False)
    line = f"{AT}layer_ran   id=worker-1 layer=2 rows=300 seconds=0.5 service=worker"
    assert read_execution("worker-1", line, LAYERS) == Execution("worker-1", NOW - 0.5, NOW, 300, 300, 600, True)


def test_a_log_keeps_what_it_is_about_and_passes_everything_on() -> None:
    lines: list[str] = []
    log = StepLog(lambda name, line: lines.append(line), LAYERS)
    for layers in (0, 3):
        log.echo("worker-0", f"{AT}request_taken layers={layers} of=worker-1 request=r seconds=0.25")
    log.echo("worker-1", f"{AT}layer_ran   layer=2 rows=300 seconds=0.5")
    log.echo("worker-1", "anything else")
    assert len(lines) == 4
    assert log.hand_offs == [0.25]
    assert [one.live for one in log.executions] == [True]


def test_layers_are_counted_by_their_share_in_a_stretch_of_time() -> None:
    assert OFF.layers_in(2.0, 5.0) == 3 * ROWS
    assert LIVE.layers_in(4.0, 7.0) == 6 * ROWS
    assert LIVE.layers_in(100.0, 101.0) == 0.0
    assert (second_half(OFF), second_half(LIVE)) == (1.0, 2.0)


def test_the_second_half_is_told_with_its_idle_tail_as_well() -> None:
    # Both are idle from 10 s until the last block at 12 s.
    assert whole_second_half(LIVE) == pytest.approx(LIVE.layers_in(6.0, 10.0) / ROWS / 6.0)
    assert whole_second_half(LIVE) < second_half(LIVE)
    tail = told(done())["layers/s of both, idle tail included"]
    assert (tail.value, tail.against, tail.ok) == (whole_second_half(LIVE), whole_second_half(OFF), None)


def test_what_a_run_did_is_compared_with_what_the_policy_promises() -> None:
    assert executed(LIVE) == 1.5
    assert predicted(done(), LIVE) == pytest.approx(16 / 11)


def test_every_line_has_its_bar() -> None:
    lines = told(done())
    assert lines["first layer run"].value == 4.0
    assert lines["first token it took part in"].value == 7.0
    assert lines["layers/s of both"].ratio == 2.0
    assert (lines["finished while it loads"].value, lines["finished while it loads"].against) == (4, 3)
    assert lines["mean TTFT, zigzag / off"].ratio == 0.75
    assert lines["hand-off, 512 tokens"].ratio == 0.8
    missed = {case for case, line in lines.items() if line.ok is False}
    assert missed == {"finished while it loads"}
    assert lines["a block takes 6 layers, zigzag: mean TTFT"].ok is None


def test_live_scaling_that_ran_nothing_has_no_figures() -> None:
    with pytest.raises(BenchFailed, match="ran no layer before it was whole"):
        told(done(OFF))


def test_the_page_says_what_was_missed_and_draws_every_mode() -> None:
    made = done()
    page = render_live(made, list(told(made).values()), 1, CONDITIONS)
    assert "Missed: finished while it loads." in page
    assert page.count("<svg") == 4
    assert page.count("best-effort") > 3


@pytest.mark.system
@pytest.mark.slow
def test_it_measures_with_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("SIZE", "small"), ("FACTORS", (6.0,)), ("STREAM_TOKENS", 2)):
        monkeypatch.setattr(bench, name, value)
    assert kept_model("small", print).exists()
    result = CliRunner().invoke(bench.live, ["--repeats", "1"])
    # Whether layers are run before the last one is there depends on the machine.
    has_ended = "is the machine busy" not in result.output
    lines = {line["case"]: line for line in records_in(result.stdout, has_ended=has_ended)}
    assert lines["load, zigzag"]["value"] > 0, result.output
    if has_ended:
        assert lines["a block takes 6 layers, zigzag: mean TTFT"]["value"] > 0, result.output
        assert "<svg" in (tmp_path / "livescale-live.html").read_text()
