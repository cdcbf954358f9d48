"""Chaos: its load, its schedule, its patient client, and the undisturbed run."""

from pathlib import Path

import pytest

from livescale.load.bench.engine_alone import CONTEXT
from livescale.load.chaos.arrivals import make_load, make_phases, seeded
from livescale.load.chaos.client import PatientClient
from livescale.load.chaos.reference import undisturbed
from livescale.load.chaos.schedule import LOADING, REST_SECONDS, SOURCE, Fault, Targets, plan_faults
from livescale.load.chaos.settings import ChaosSettings
from livescale.load.chaos.system import choose_targets, stack_settings
from livescale.load.client import open_session, send_open_loop
from livescale.load.records import Ask, RequestRecord
from livescale.load.tally import Tally
from livescale.shared.runtime.clock import SystemClock
from tests.load.scripted_server import ScriptedServer
from tests.made import tiny

TARGETS = Targets(("worker-0", "worker-1", "worker-2"), ("router-0", "nats"), 3)


def hits(faults: tuple[Fault, ...]) -> list[Fault]:
    """Kills and freezes at their times, those that follow a scale included."""
    found = [fault for fault in faults if fault.kind != "scale"]
    for fault in faults:
        if fault.then is not None:
            found.append(Fault(fault.at + fault.then.at, fault.then.kind, fault.then.target, fault.then.seconds))
    return sorted(found, key=lambda fault: fault.at)


def test_the_same_seed_makes_the_same_schedule_and_another_seed_another() -> None:
    assert plan_faults(1, 300, TARGETS) == plan_faults(1, 300, TARGETS)
    assert plan_faults(1, 300, TARGETS) != plan_faults(2, 300, TARGETS)
    assert {fault.kind for fault in plan_faults(1, 300, TARGETS)} == {"kill", "freeze", "scale"}


@pytest.mark.parametrize("seed", range(20))
def test_stalls_come_beside_the_other_faults_and_leave_the_end_calm(seed: int) -> None:
    faults = plan_faults(seed, 300, TARGETS, stalls=True)
    stalls = [fault for fault in faults if fault.kind == "stall"]
    assert tuple(fault for fault in faults if fault.kind != "stall") == plan_faults(seed, 300, TARGETS)
    assert 15 < len(stalls) < 50
    assert 0 < min(stall.seconds for stall in stalls) < max(stall.seconds for stall in stalls) <= 5
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert faults[-1].at < 285
    assert faults == plan_faults(seed, 300, TARGETS, stalls=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_target_comes_back_before_it_is_hit_again_and_the_end_is_calm(seed: int) -> None:
    faults = plan_faults(seed, 300, TARGETS)
    last: dict[str, Fault] = {}
    for fault in hits(faults):
        before = last.get(fault.target)
        if before is not None and fault.target not in (LOADING, SOURCE):
            assert fault.at >= before.at + before.seconds + REST_SECONDS - 1e-9
        last[fault.target] = fault
    assert faults[-1].at < 285
    assert all(1 <= fault.instances <= 3 for fault in faults if fault.kind == "scale")


def test_every_target_is_hit_in_a_long_run_and_scales_while_they_move_parameters() -> None:
    faults = plan_faults(0, 600, TARGETS)
    assert {fault.target for fault in hits(faults)} == {*TARGETS.workers, *TARGETS.others, LOADING, SOURCE}
    ambushed = [fault for fault in faults if fault.then is not None]
    assert all(fault.kind == "scale" and fault.instances == TARGETS.instances for fault in ambushed)


def test_workers_are_frozen_for_longer_than_others() -> None:
    frozen = [fault for fault in hits(plan_faults(4, 900, TARGETS)) if fault.kind == "freeze"]
    of_workers = [fault.seconds for fault in frozen if fault.target not in TARGETS.others]
    of_others = [fault.seconds for fault in frozen if fault.target in TARGETS.others]
    assert 7 < max(of_workers) <= 10
    assert 1 < max(of_others) <= 4


def test_only_the_services_that_are_named_are_disturbed() -> None:
    chosen = choose_targets(ChaosSettings(disturb="worker,nats,router", workers=2))
    assert chosen.workers == ["worker-0", "worker-1"]
    assert chosen.others == ["nats", "router-0", "router-1"]
    assert choose_targets(ChaosSettings(disturb="router")).workers == []
    with pytest.raises(ValueError, match="no 'rooter' runs here"):
        choose_targets(ChaosSettings(disturb="rooter"))


def test_by_default_every_process_of_the_system_may_be_hit() -> None:
    settings = ChaosSettings()
    services = {name.rpartition("-")[0] or name for name in choose_targets(settings).names}
    assert services == {"worker", "gateway", "router", "registry", "planner", "monitor", "host", "nats"}
    stack = stack_settings(settings, tiny("llama"))
    assert (stack.gateways, stack.routers) == (2, 2)
    assert stack.link_rate > 0


def test_faults_fall_on_the_others_where_no_worker_may_be_hit() -> None:
    faults = plan_faults(3, 300, Targets((), ("router-0", "registry-0"), 3))
    assert {fault.target for fault in hits(faults)} == {"router-0", "registry-0"}


async def test_a_refused_request_is_sent_again_only_where_the_server_allows_it() -> None:
    server = ScriptedServer(["busy", "busy", "good", "refuse"])
    records: list[RequestRecord] = []
    async with server.serving() as url, open_session(url, "", 10.0) as session:
        client = PatientClient({"gateway-0": session}, "tiny", SystemClock(), Tally())
        await send_open_loop(client, [Ask(0, 0.0, [1], 4)], records)
        await send_open_loop(client, [Ask(1, 0.0, [1], 4)], records)
    assert (records[0].error, len(records[0].token_ids)) == (None, 4)
    assert records[1].error == "HTTP 429: the queue is full"
    assert client.refusals == {0: 2}


async def test_a_stream_that_broke_is_kept_apart_and_its_request_made_anew_at_another_gateway() -> None:
    first, second = ScriptedServer(["break"]), ScriptedServer()
    records: list[RequestRecord] = []
    async with (
        first.serving() as one,
        second.serving() as two,
        open_session(one, "", 10.0) as to_first,
        open_session(two, "", 10.0) as to_second,
    ):
        client = PatientClient({"gateway-0": to_first, "gateway-1": to_second}, "tiny", SystemClock(), Tally())
        await send_open_loop(client, [Ask(0, 0.0, [1], 4)], records)
    assert (len(first.bodies), len(second.bodies)) == (1, 1)
    assert (records[0].error, len(records[0].token_ids)) == (None, 4)
    [cut] = client.cuts
    assert cut.gateway == "gateway-0"
    assert cut.record.token_ids == [100]
    assert "connection failed" in (cut.record.error or "")
    assert records[0].due == cut.record.due


async def test_a_gateway_that_does_not_listen_is_passed_over() -> None:
    server, tally = ScriptedServer(), Tally()
    records: list[RequestRecord] = []
    async with (
        server.serving() as url,
        open_session("http://127.0.0.1:1", "", 10.0) as nowhere,
        open_session(url, "", 10.0) as session,
    ):
        client = PatientClient({"gateway-0": nowhere, "gateway-1": session}, "tiny", SystemClock(), tally)
        await send_open_loop(client, [Ask(0, 0.0, [1], 4)], records)
    assert records[0].error is None
    assert (tally.sent, tally.ended, tally.failed) == (1, 1, 0)
    assert client.cuts == []


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


@pytest.mark.parametrize("seconds", [6.0, 20.0, 50.0])
def test_calm_and_burst_take_turns_until_the_end(seconds: float) -> None:
    phases = make_phases(seconds, 2.0)
    assert sum(phase.seconds for phase in phases) == pytest.approx(seconds)
    assert {(phase.name, phase.rate) for phase in phases} == {("calm", 1.0), ("burst", 3.5)}


async def test_the_undisturbed_run_is_the_same_every_time_and_sampled_where_asked() -> None:
    asks = [Ask(0, 0.0, [5, 6, 7], 12), Ask(1, 0.0, [5, 6, 7], 12, temperature=0.8, seed=3)]
    first = await undisturbed(tiny("llama"), "float32", asks)
    again = await undisturbed(tiny("llama"), "float32", asks[1:])
    assert {index: len(tokens) for index, tokens in first.items()} == {0: 12, 1: 12}
    assert again[1] == first[1] != first[0]
    assert CONTEXT >= 256


async def test_the_undisturbed_run_takes_however_many_requests_there_were() -> None:
    answers = await undisturbed(tiny("llama"), "float32", [Ask(index, 0.0, [index + 2], 2) for index in range(120)])
    assert [len(answers[index]) for index in range(120)] == [2] * 120
