from livescale.load.bench.live.rows import second_half
from livescale.load.bench.live.steps import Execution, StepLog, read_execution
from tests.load.bench.live.runs import LAYER, LAYERS, LIVE, OFF, ROWS, run, step

AT = "2026-01-02T03:04:05.500000Z [debug    ] "
NOW = 1767323045.5


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


def test_the_slowest_step_is_the_one_that_took_longest_for_its_layers() -> None:
    late = Execution("target", 4.0, 4.0 + 2 * LAYER, ROWS, ROWS, 0, live=True)
    assert run("zigzag", [4.0, 8.0], step(0, 4), late, step(4, 8)).slowest == late  # which took longer, for more layers
