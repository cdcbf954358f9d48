"""BlitzScale's example (Fig. 15): seven layers, a load takes six layer times, clock 0 is when the first is ready."""

import itertools

import pytest

from livescale.services.worker.live.optimum import solve
from livescale.services.worker.live.policy import BEST_EFFORT, OFF, ZIGZAG, LiveTask, Rule
from livescale.services.worker.live.simulation import SOURCE, TARGET, LayerTimes, Simulation, simulate

LAYERS, LOAD = 7, 6
READY = [float(LOAD * layer) for layer in range(LAYERS)]
NEVER = 1e6


def played(arrivals: list[int], rule: Rule = ZIGZAG) -> Simulation:
    return simulate([LiveTask(f"{number:02}", float(at)) for number, at in enumerate(arrivals, 1)], READY, rule)


def latency_of_7(arrivals: list[int], rule: Rule = ZIGZAG) -> float:
    return played(arrivals, rule).ends["07"] - arrivals[6]


def throughput(loaded: int, layers: int) -> float:
    """Batches a layer time with no more than so many layers, once the target has run ahead as far as it can."""
    count = 60
    ready = [0.0] * loaded + [NEVER] * (layers - loaded)
    ends = simulate([LiveTask(f"{number:02}", 0.0) for number in range(count)], ready).ends
    first, last = ends[f"{count // 2:02}"], ends[f"{count - 1:02}"]
    return (count - 1 - count // 2) / (last - first)


def test_request_3_ends_at_17() -> None:
    run = played([0] * 7)
    assert [run.ends[each] for each in ("01", "02", "03")] == [7, 12, 17]
    assert [run.layers_run(TARGET, each) for each in ("01", "02", "03")] == [0, 2, 2]
    assert [run.layers_run(SOURCE, each) for each in ("01", "02", "03")] == [7, 5, 5]


def test_the_optimum_begins_like_that_too() -> None:
    optimum = solve([LiveTask(str(number), 0.0) for number in range(1, 8)], READY)
    assert optimum.ends[:3] == (7, 12, 17)


def test_with_c3_as_it_is_printed_the_example_has_no_solution() -> None:
    requests = 7
    shares = itertools.product(range(LAYERS + 1), repeat=2)  # T of the first two requests, whose constraints suffice
    allowed = [
        (first, second)
        for first, second in shares
        if first + second <= LAYERS - first and LOAD * second <= first + (requests - 1) * (second - 1)
    ]
    assert allowed == []


def test_request_7_goes_from_32_to_22_when_four_wait_and_three_come_at_7() -> None:
    arrivals = [0, 0, 0, 0, 7, 7, 7]
    assert latency_of_7(arrivals, BEST_EFFORT) == 32
    assert latency_of_7(arrivals) == 22


def test_with_all_seven_waiting_at_0_request_7_takes_neither_32_nor_22() -> None:
    assert latency_of_7([0] * 7, BEST_EFFORT) == 41
    assert latency_of_7([0] * 7) == 29


def test_with_six_waiting_no_arrival_of_the_seventh_gives_both() -> None:
    found = {at: (latency_of_7([0] * 6 + [at], BEST_EFFORT), latency_of_7([0] * 6 + [at])) for at in range(30)}
    assert [at for at, (best_effort, _) in found.items() if best_effort == 32] == [9]
    assert [at for at, (_, zigzag) in found.items() if zigzag == 22] == [7]


@pytest.mark.parametrize(("loaded", "expected"), [(0, 1 / 7), (1, 1 / 6), (2, 1 / 5), (3, 1 / 4), (4, 2 / 7)])
def test_throughput_grows_from_a_7th_over_a_6th_until_it_is_doubled(loaded: int, expected: float) -> None:
    assert throughput(loaded, LAYERS) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("layers", [8, 16])
def test_throughput_is_doubled_exactly_at_half_the_layers(layers: int) -> None:
    assert throughput(layers // 2, layers) == pytest.approx(2 / layers)
    assert throughput(layers // 2 - 1, layers) < 2 / layers


def test_zigzag_ends_requests_sooner_than_best_effort_and_that_sooner_than_off() -> None:
    zigzag, best_effort, off = (played([0] * 12, rule).mean_latency for rule in (ZIGZAG, BEST_EFFORT, OFF))
    assert zigzag < best_effort < off


def test_until_it_is_whole_off_leaves_everything_to_the_source() -> None:
    run = played([0] * 12, OFF)
    assert min(span.start for span in run.spans if span.where == TARGET) == READY[-1]
    assert sorted(run.ends.values())[:5] == [7, 14, 21, 28, 35]


def test_every_layer_runs_once_in_order_and_after_its_block() -> None:
    rules: list[Rule] = [ZIGZAG, BEST_EFFORT, OFF]
    for rule, arrivals in itertools.product(rules, ([0] * 12, list(range(0, 60, 5)))):
        run = played(arrivals, rule)
        for task in run.tasks:
            spans = sorted((span for span in run.spans if span.task == task.id), key=lambda span: span.start)
            assert [span.first for span in spans] == [0, *(span.stop for span in spans[:-1])]
            assert spans[-1].stop == LAYERS
            assert all(before.end <= after.start for before, after in itertools.pairwise(spans))
            assert run.ends[task.id] == spans[-1].end
        assert all(span.start >= READY[span.first] for span in run.spans if span.where == TARGET)


def test_between_two_measurements_and_beyond_them_times_lie_on_a_line() -> None:
    times = LayerTimes({128: 0.01, 512: 0.03, 1024: 0.07})
    assert times.seconds(128) == times.seconds(1) == 0.01
    assert times.seconds(320) == pytest.approx(0.02)
    assert times.seconds(512) == pytest.approx(0.03)
    assert times.seconds(768) == pytest.approx(0.05)
    assert times.seconds(2048) == pytest.approx(0.15)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two sizes"):
        LayerTimes({128: 0.01})
    with pytest.raises(ValueError, match=r"0\.01 s for 256"):
        LayerTimes({128: 0.02, 256: 0.01})
    with pytest.raises(ValueError, match=r"0\.0 s for 128"):
        LayerTimes({128: 0.0, 256: 0.01})
