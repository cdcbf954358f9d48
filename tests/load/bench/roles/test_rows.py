import pytest

from livescale.load.bench.live.steps import Execution
from livescale.load.bench.roles.reservations import HeardReservations
from livescale.load.bench.roles.rows import (
    CONTEXT,
    GAPS,
    MOST_LOAD,
    KvSizes,
    MixedRun,
    mixed_load,
    prefill_rate,
    roles_loads,
)
from livescale.load.bench.samples import BenchFailed
from tests.load.bench.roles.runs import KIB, RUNS, done, run, told


def test_what_is_exposed_is_held_against_the_last_piece_and_against_sending_by_request() -> None:
    found = told(done())
    exposed = found["KV exposed, to its limit"]
    assert (exposed.value, exposed.against, exposed.ok) == (pytest.approx(70), pytest.approx(1.5 * 50 + 3), True)
    ways = found["KV exposed, by layer / by request"]
    assert (ways.ratio, ways.bar, ways.ok) == (pytest.approx(0.14), 0.25, True)
    late = done()
    late.exposed = [0.079]
    assert told(late)["KV exposed, to its limit"].ok is False
    late.exposed = [0.126]
    assert told(late)["KV exposed, by layer / by request"].ok is False


@pytest.mark.parametrize(
    ("sizes", "positions", "last"),
    [
        (KvSizes(10, KIB), 384, 384 * KIB),
        (KvSizes(10, KIB), 100, 100 * KIB),  # three layers a piece, the last one alone
        (KvSizes(2, KIB), 100, 200 * KIB),  # too little for two pieces
    ],
)
def test_the_last_piece_is_what_the_worker_sends_last(sizes: KvSizes, positions: int, last: int) -> None:
    assert sizes.last_piece(positions) == last
    assert sizes.whole(positions) == sizes.layers * positions * KIB


def test_prefill_may_lose_little_while_it_sends() -> None:
    record = told(done())["prefill while KV leaves"]
    assert (record.value, record.against, record.bar, record.ok) == (980, 1000, 0.97, True)
    slow = done()
    slow.sending = [960.0]
    assert told(slow)["prefill while KV leaves"].ok is False


def test_prefill_counts_from_the_first_step_to_the_last_with_what_lies_between() -> None:
    steps = [Execution("a", at, at + 1.0, 300, 300, 0, live=False) for at in (0.0, 2.0)]
    assert prefill_rate(steps) == pytest.approx(200)


def test_gaps_and_first_tokens_are_held_against_those_of_two_that_do_both() -> None:
    found = told(done())
    assert found["gaps of a run"].value == 201
    assert (found["requests handed over, apart"].value, found["requests handed over, apart"].against) == (2, 2)
    tbt = found["TBT p99, apart / colocated"]
    assert (tbt.value, tbt.against, tbt.bar, tbt.ok) == (pytest.approx(100), pytest.approx(200), 0.65, True)
    assert found["TTFT p50, apart / colocated"].ok is True
    slow = told(done([run("apart", 2.0, 0.15), *RUNS[1:]]))
    assert slow["TBT p99, apart / colocated"].ok is False
    assert slow["TTFT p50, apart / colocated"].ratio == pytest.approx(5.5 / 5.0)


def test_the_gap_before_the_second_token_counts() -> None:
    assert run("apart", 1.0, 0.1).records[1].gaps == [1.5]
    assert 1.5 in run("apart", 1.0, 0.1).gaps


def test_a_pause_counts_while_streams_run_that_saw_the_change() -> None:
    assert run("switched", 1.0, 0.1).longest_pause == pytest.approx(1.5)
    assert run("switched", 1.0, 0.1, 0.2, 3.0).longest_pause == pytest.approx(3.0)
    # All that ran at 10 have ended at 21, so that the last two pauses are others'.
    long = run("switched", 12.0, 20.0, 0.2)
    assert long.longest_pause == pytest.approx(1.5)
    with pytest.raises(BenchFailed, match="no stream was under way"):
        _ = MixedRun("switched", 99.0, long.records[1:], [0.1], 0.0, 0.0).longest_pause


def test_a_change_of_roles_may_cost_one_step_and_no_parameters() -> None:
    found = told(done())
    assert found["a step of decodes"].value == pytest.approx(30)
    pause = found["longest pause as roles change"]
    assert (pause.value, pause.against, pause.ok) == (pytest.approx(1500), pytest.approx(1530), True)
    assert told(done([*RUNS[:2], run("switched", 1.0, 0.1, 1.6)]))["longest pause as roles change"].ok is False
    case = "parameters moved as roles change"
    assert (found[case].value, found[case].ok) == (0, True)
    moved = told(done([*RUNS, run("switched", 1.0, 0.1, moved=5.0)]))[case]
    assert (moved.value, moved.ok) == (5, False)


def test_the_slowest_of_twenty_switches_counts_in_part() -> None:
    late = told(done())["order to first reservation, p95"]
    assert (late.against, late.bar, late.ok) == (50, 1.0, True)
    slow = done()
    slow.switches = [0.01] * 18 + [0.2] * 2
    assert told(slow)["order to first reservation, p95"].ok is False


def test_a_switch_ends_with_the_first_reservation_that_was_not_refused() -> None:
    heard = HeardReservations()
    heard.asked += [(1.0, "b", ("a", 1)), (2.1, "b", ("a", 2)), (2.2, "a", ("b", 3)), (2.4, "a", ("b", 4))]
    heard.taken |= {("a", 1), ("a", 2), ("b", 4)}
    assert heard.first_after(2.0, "a") == pytest.approx(0.4)
    with pytest.raises(BenchFailed, match="c took over no request"):
        heard.first_after(2.0, "c")
    heard.clear()
    assert not heard.asked
    assert not heard.taken


def test_all_requests_fit_and_have_indices_of_their_own() -> None:
    asks = list(roles_loads())
    assert len({ask.index for ask in asks}) == len(asks)
    assert max(len(ask.prompt) + ask.max_tokens for ask in asks) <= CONTEXT


def test_prompts_whose_kv_stays_and_prompts_whose_kv_leaves_are_the_same() -> None:
    loads = roles_loads()
    assert [ask.prompt for ask in loads.unsent] == [ask.prompt for ask in loads.sent]
    assert {ask.max_tokens for ask in loads.unsent} == {1}  # nothing is left to hand over
    assert {ask.max_tokens for ask in loads.sent} == {2}


def test_a_mixed_load_has_gaps_enough_and_is_the_same_every_time() -> None:
    asks = roles_loads().mixed
    assert sum(ask.max_tokens - 1 for ask in asks) >= GAPS
    due, faster = mixed_load(asks, 1000.0), mixed_load(asks, 2000.0)
    assert due == mixed_load(roles_loads().mixed, 1000.0)
    assert [ask.at for ask in due] == [2 * ask.at for ask in faster]
    # Random times keep to the mean only roughly.
    mean = due[-1].at / (len(due) - 1)
    assert 0.6 < mean * MOST_LOAD * 1000 / len(asks[0].prompt) < 1.6
