"""What the invariants look at: what happened in a run, and which faults can be why."""

import pytest

from livescale.load.simulate.event_log import LoggedEvent
from livescale.load.simulate.seeds.evidence import (
    LEASE_SECONDS,
    answered,
    leases,
    may_lose_orders,
    places_of,
    resumed_requests,
    strikes,
    taken_back,
    undisturbed,
    was_struck,
)
from livescale.load.simulate.seeds.history import AskOutcome, History, SeedFault, SeedFaultKind
from livescale.load.simulate.seeds.system import random_system
from livescale.shared.bus.codec import encode
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.requests import RequestLost, TokenFrame, Tokens
from livescale.shared.subjects import LEASE, TOKENS
from tests.load.simulate.seeds.decisions import decided

SYSTEM = random_system(3)
ASK = SYSTEM.asks[0]


def tokens(*rows: Tokens) -> LoggedEvent:
    frame = TokenFrame(worker="worker-0", step=1, rows=list(rows))
    return LoggedEvent(1.0, "tok.gateway-0", encode(frame, json=TOKENS.json))


def row(id: str, index: int) -> Tokens:
    return Tokens(request_id=id, index=index, token_ids=[1])


def test_the_tokens_of_a_request_depend_on_it_and_on_the_model_alone() -> None:
    right = undisturbed(ASK, "v1")
    assert len(right) == ASK.ask.max_tokens
    assert undisturbed(ASK, "v1") == right
    assert undisturbed(ASK, "v2") != right


def test_answers_are_told_with_their_asks() -> None:
    history = History(answers=[AskOutcome(1, "complete"), AskOutcome(0, "left")])
    assert [(ask is SYSTEM.asks[answer.number], answer.end) for ask, answer in answered(SYSTEM, history)] == [
        (True, "complete"),
        (True, "left"),
    ]


def test_what_a_model_gave_up_is_taken_back_where_it_has_one_more_a_moment_later() -> None:
    events = [
        *(decided(1.0, "in", "yield"), decided(1.01, "hold", "capacity"), decided(1.05, "out", "decode")),
        *(decided(2.0, "in", "yield"), decided(2.5, "out", "decode")),  # for what came meanwhile
        *(decided(3.0, "in", "idle"), decided(3.05, "out", "decode"), decided(3.1, "in", "yield")),
        decided(3.15, "out", "from-zero", model="n"),
    ]
    assert taken_back(History(events=events)) == {"m": 1}


def test_a_request_has_gone_on_elsewhere_where_another_attempt_begins_after_tokens() -> None:
    lost = LoggedEvent(
        2.0, "tok.gateway-0", encode(RequestLost(request_id="gateway-0-1", reason="it is gone"), json=TOKENS.json)
    )
    events = [
        tokens(row("gateway-0-1", 0), row("gateway-0-1", 3)),
        lost,
        tokens(row("gateway-0-2-1", 0)),
        tokens(row("gateway-0-2-1", 1)),
        tokens(row("gateway-0-1-1", 4), row("gateway-0-1-1", 5)),
        LoggedEvent(3.0, "req.worker-0.ended", b""),
    ]
    assert resumed_requests(History(events=events)) == ["gateway-0-1-1"]


def test_judgements_of_the_registry_are_read_in_order_among_other_events() -> None:
    change = LeaseChanged(service="worker", id="worker-0", epoch=1, state="dead", reason="silent", at=5.0)
    data = encode(change, json=LEASE.json)
    events = [tokens(row("a", 0)), LoggedEvent(5.0, "evt.lease.worker-0", data)]
    assert list(leases(History(events=events))) == [(5.0, change)]


def test_every_worker_and_host_has_a_place_of_the_topology() -> None:
    places = places_of(SYSTEM)
    topology = SYSTEM.cluster.topology
    assert {id for id in places if id.startswith("worker-")} == {f"worker-{n}" for n in range(len(topology.gpus))}
    assert {places[id] for id in places} == {gpu.id for gpu in topology.gpus} | {host.id for host in topology.hosts}


@pytest.mark.parametrize(
    ("what", "who", "services", "struck"),
    [
        ("kill", "worker-1", ["worker"], True),
        ("kill", "worker-1", ["router"], False),
        ("part", "worker-1", ["router"], False),
        ("scale", "worker-1", ["worker"], False),
        ("slow-disk", "host-0", ["host"], False),
        ("stall", "", ["router"], True),
    ],
)
def test_a_fault_strikes_services_by_name_or_everybody(
    what: SeedFaultKind, who: str, services: list[str], struck: bool
) -> None:
    assert strikes(SeedFault(1.0, what, who), services) == struck


def test_only_a_fault_that_can_kill_and_is_not_long_over_is_why_a_process_died() -> None:
    fault = SeedFault(at=10.0, what="freeze", who="worker-1", seconds=2.0)
    assert was_struck([fault], "worker-1", 11.0)
    assert was_struck([fault], "worker-1", 12.0 + LEASE_SECONDS)
    assert not was_struck([fault], "worker-1", 12.1 + LEASE_SECONDS)
    assert not was_struck([fault], "worker-1", 9.0)
    assert not was_struck([fault], "worker-2", 11.0)
    assert not was_struck([SeedFault(10.0, "scale", "worker-1", 2.0)], "worker-1", 11.0)
    assert was_struck([SeedFault(10.0, "lose", "", 2.0)], "worker-1", 11.0)
    away = SeedFault(15.0, "part", "registry-0", 4.0)
    assert was_struck([fault, away], "worker-1", 19.0 + LEASE_SECONDS)
    assert not was_struck([fault, away], "worker-1", 19.1 + LEASE_SECONDS)
    assert not was_struck([away], "worker-1", 20.0)
    without_bus, still = SeedFault(11.0, "outage", "", 4.0), SeedFault(14.0, "stall", "", 5.0)
    assert was_struck([fault, without_bus, still], "worker-1", 19.0 + LEASE_SECONDS)
    assert not was_struck([fault, without_bus, still], "worker-1", 19.1 + LEASE_SECONDS)


@pytest.mark.parametrize(
    ("seconds", "frozen", "who", "may_be_lost"),
    [
        (1.9, 0.0, "registry-0", True),
        (2.1, 0.0, "registry-0", False),
        (2.1, 0.5, "registry-0", True),
        (2.1, 0.5, "host-0", False),
    ],
)
def test_who_slept_while_it_was_cut_off_may_have_lost_orders_unsuspected(
    seconds: float, frozen: float, who: str, may_be_lost: bool
) -> None:
    part = SeedFault(1.0, "part", "registry-0", seconds)
    assert may_lose_orders(part, [part, SeedFault(1.0, "freeze", who, frozen)]) is may_be_lost
