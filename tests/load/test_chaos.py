"""Chaos: its schedule, its patience, and its judgement."""

from pathlib import Path

import pytest
from rich.console import Console

from load.bench.engine_alone import CONTEXT
from load.chaos.client import PatientClient
from load.chaos.faults import Happening
from load.chaos.reference import undisturbed
from load.chaos.report import ChaosReport, count_wrong, fault_table, make_report
from load.chaos.schedule import REST_SECONDS, Fault, Targets, plan_faults
from load.chaos.settings import ChaosSettings
from load.chaos.stage import make_load, seeded, targets
from load.client import open_session, send_open_loop
from load.records import Ask, RequestRecord
from load.tally import Tally
from shared.world import SystemClock
from tests.load.scripted_server import ScriptedServer
from tests.made import tiny

PROCESSES = ("nats", "registry-0", "router-0", "router-1", "worker-0", "worker-1", "gateway-0")
TARGETS = Targets(("worker-0", "worker-1", "worker-2"), ("router-0", "nats"), 3)


def record(index: int = 0, tokens: tuple[int, ...] = (1, 2, 3), *, due: float = 0.0, asked: int = 3) -> RequestRecord:
    """A token a second from `due` on, but two seconds before the last."""
    at = [due + 1.0 + place for place in range(len(tokens))]
    at[-1:] = [at[-1] + 1.0] if at else []
    return RequestRecord(
        index=index,
        due=due,
        sent=due,
        ended=at[-1] if at else due,
        prompt_tokens=1,
        asked_tokens=asked,
        status=200,
        finish_reason="length",
        token_ids=list(tokens),
        token_at=at,
    )


def judged(*records: RequestRecord, right: dict[int, list[int]] | None = None) -> ChaosReport:
    return make_report(
        seed=1,
        dtype="float32",
        seconds=9.0,
        happenings=[],
        records=records,
        undisturbed=right or {0: [1, 2, 3]},
        resumed=0,
        refused=0,
    )


def test_the_same_seed_makes_the_same_schedule_and_another_seed_another() -> None:
    assert plan_faults(1, 300, TARGETS) == plan_faults(1, 300, TARGETS)
    assert plan_faults(1, 300, TARGETS) != plan_faults(2, 300, TARGETS)
    assert {fault.kind for fault in plan_faults(1, 300, TARGETS)} == {"kill", "freeze", "scale"}


@pytest.mark.parametrize("seed", range(20))
def test_a_target_comes_back_before_it_is_hit_again_and_the_end_is_calm(seed: int) -> None:
    faults = plan_faults(seed, 300, TARGETS)
    last: dict[str, Fault] = {}
    for fault in faults:
        before = last.get(fault.target)
        if before is not None and fault.kind != "scale":
            assert fault.at >= before.at + before.seconds + REST_SECONDS
        last[fault.target] = fault
    assert faults[-1].at < 285
    assert all(1 <= fault.instances <= 3 for fault in faults if fault.kind == "scale")


def test_every_target_is_hit_in_a_long_run() -> None:
    hit = {fault.target for fault in plan_faults(0, 600, TARGETS)}
    assert hit >= {*TARGETS.workers, *TARGETS.others}


def test_only_the_services_that_are_named_are_disturbed() -> None:
    chosen = targets(ChaosSettings(disturb="worker,nats,router"), PROCESSES)
    assert chosen.workers == ["worker-0", "worker-1"]
    assert chosen.others == ["nats", "router-0", "router-1"]
    assert targets(ChaosSettings(disturb="router"), PROCESSES).workers == []
    with pytest.raises(ValueError, match="no 'rooter' runs here"):
        targets(ChaosSettings(disturb="rooter"), PROCESSES)


def test_faults_fall_on_the_others_where_no_worker_may_be_hit() -> None:
    faults = plan_faults(3, 300, Targets((), ("router-0", "registry-0"), 3))
    assert {fault.target for fault in faults if fault.kind != "scale"} == {"router-0", "registry-0"}


def test_a_stream_that_equals_the_undisturbed_one_is_good() -> None:
    report = judged(record())
    assert report.good
    assert (report.longest_pause, report.longest_first, report.tokens) == (2.0, 1.0, 3)


@pytest.mark.parametrize(
    ("tokens", "wrong", "lost"), [((1, 9, 3), 1, 0), ((1, 2), 0, 1), ((1, 2, 2, 3), 2, 0), ((), 0, 3)]
)
def test_wrong_lost_and_repeated_tokens_are_counted(tokens: tuple[int, ...], wrong: int, lost: int) -> None:
    report = judged(record(tokens=tokens))
    assert not report.good
    assert (report.wrong_tokens, report.lost_tokens) == (wrong, lost)


def test_a_request_without_a_record_is_incomplete() -> None:
    report = judged(record(), right={0: [1, 2, 3], 1: [4]})
    assert (report.incomplete, report.lost_tokens, report.good) == (["request 1: no record of it"], 1, False)


def test_tokens_beyond_the_end_are_wrong() -> None:
    assert count_wrong([1, 2, 3, 4], [1, 2]) == 2


def test_a_fault_s_row_has_the_longest_pause_until_the_next_fault() -> None:
    happenings = [
        Happening(Fault(1.5, "kill", "worker-0"), 1.5, ""),
        Happening(Fault(1.8, "scale", "", instances=2), 1.8, "1 -> 2"),
        Happening(Fault(50.0, "freeze", "router-0", seconds=2.0), 50.0, ""),
    ]
    console = Console(width=100)
    with console.capture() as captured:
        console.print(fault_table(happenings, [record()], 0.0, 60.0))
    rows = [line.split() for line in captured.get().splitlines()[-3:]]
    assert rows[0] == ["1.50", "s", "kill", "worker-0", "1", "1.00", "s"]
    assert rows[1] == ["1.80", "s", "scale", "to", "2:", "1", "->", "2", "1", "2.00", "s"]
    assert rows[2] == ["50.00", "s", "freeze", "router-0", "for", "2.0", "s", "0", "0", "ms"]


async def test_a_refused_request_is_sent_again_only_where_the_server_allows_it() -> None:
    server = ScriptedServer(["busy", "busy", "good", "refuse"])
    records: list[RequestRecord] = []
    async with server.serving() as url, open_session(url, "", 10.0) as session:
        client = PatientClient(session, "tiny", SystemClock(), Tally())
        await send_open_loop(client, [Ask(0, 0.0, [1], 4)], records)
        await send_open_loop(client, [Ask(1, 0.0, [1], 4)], records)
    assert (records[0].error, len(records[0].token_ids)) == (None, 4)
    assert records[1].error == "HTTP 429: the queue is full"
    assert client.refusals == {0: 2}


async def test_a_stream_that_broke_is_not_sent_again() -> None:
    server = ScriptedServer(["break"])
    records: list[RequestRecord] = []
    async with server.serving() as url, open_session(url, "", 10.0) as session:
        await send_open_loop(PatientClient(session, "tiny", SystemClock(), Tally()), [Ask(0, 0.0, [1], 4)], records)
    assert len(server.bodies) == 1
    assert "connection failed" in (records[0].error or "")


def test_every_other_request_is_sampled_from_a_seed_of_its_own() -> None:
    one, two, three = (seeded(Ask(index, 0.0, [1], 4)) for index in (0, 1, 3))
    assert one.temperature == 0.0
    assert two.temperature == three.temperature > 0
    assert two.seed != three.seed
    assert two == seeded(Ask(1, 0.0, [1], 4))


def test_the_load_is_made_up_or_replayed_for_as_long_as_asked(tmp_path: Path) -> None:
    made = make_load(ChaosSettings(minutes=0.5, rate=4.0))
    assert made == make_load(ChaosSettings(minutes=0.5, rate=4.0))
    assert 60 < len(made) < 180
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt,output\n1,10,20\n40,10,20\n")
    (arrival,) = make_load(ChaosSettings(minutes=0.5, trace=str(path)))
    assert (arrival.at, arrival.prompt_tokens, arrival.output_tokens) == (1.0, 10, 20)


async def test_the_undisturbed_run_is_the_same_every_time_and_sampled_where_asked() -> None:
    asks = [Ask(0, 0.0, [5, 6, 7], 12), Ask(1, 0.0, [5, 6, 7], 12, temperature=0.8, seed=3)]
    first = await undisturbed(tiny("llama"), "float32", asks)
    again = await undisturbed(tiny("llama"), "float32", asks[1:])
    assert {index: len(tokens) for index, tokens in first.items()} == {0: 12, 1: 12}
    assert again[1] == first[1] != first[0]
    assert CONTEXT >= 256
