"""Each rule holds of a run in which nothing went wrong, and is broken by what it is there for."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace as dataclass_replace

import msgspec
import pytest
from msgspec.structs import replace

from livescale.load.records import RequestRecord
from livescale.load.simulate.event_log import LoggedEvent
from livescale.load.simulate.seeds.asks import SeedAsk, Wishes
from livescale.load.simulate.seeds.evidence import tellable, undisturbed
from livescale.load.simulate.seeds.history import (
    AskOutcome,
    Delivered,
    History,
    LaidOut,
    Ran,
    SeedFault,
    SeedFaultKind,
    Told,
)
from livescale.load.simulate.seeds.invariants import RULES, check
from livescale.load.simulate.seeds.system import SeedSystem, random_system
from livescale.shared.bus.codec import encode
from livescale.shared.messages.membership import LeaseChanged, LeaseState
from livescale.shared.messages.requests import TokenFrame, TokenLogprobs, Tokens
from livescale.shared.messages.scaling import Action, Decision, ScaleRecord
from tests.load.simulate.seeds.decisions import decided

VERSION = "v1"
DRAWN = random_system(0)
# Nothing goes wrong in it, and its clients wait.
SYSTEM = replace(
    DRAWN, early=False, faults=[], asks=[SeedAsk(each.model, each.ask, each.shared) for each in DRAWN.asks]
)
WORKERS = len(SYSTEM.cluster.topology.gpus)
ASK = SYSTEM.asks[0]
RIGHT = undisturbed(ASK, VERSION)
RATE = min(host.nic_out for host in SYSTEM.cluster.topology.hosts)


def record(token_ids: list[int], ttft: float = 5.0, finish_reason: str | None = "length") -> RequestRecord:
    return RequestRecord(
        index=ASK.ask.index,
        due=100.0,
        sent=100.0,
        ended=130.0,
        prompt_tokens=len(ASK.ask.prompt),
        asked_tokens=ASK.ask.max_tokens,
        status=200,
        finish_reason=finish_reason,
        token_ids=token_ids,
        token_at=[100.0 + ttft] * len(token_ids),
    )


def lease(at: float, id: str, epoch: int, state: LeaseState, reason: str = "joined") -> LoggedEvent:
    change = LeaseChanged(service="worker", id=id, epoch=epoch, state=state, reason=reason, at=at)
    return LoggedEvent(at, f"evt.lease.{id}", msgspec.json.encode(change))


def frame(tokens: Tokens, worker: str = "worker-0") -> LoggedEvent:
    return LoggedEvent(7.0, "tok.gateway-0", encode(TokenFrame(worker=worker, step=1, rows=[tokens]), json=False))


def row(index: int, finish_reason: str | None = "length", attempt: str = "") -> Tokens:
    return msgspec.convert(
        {
            "request_id": f"gateway-0-{ASK.ask.index}{attempt}",
            "index": index,
            "token_ids": [1],
            "finish_reason": finish_reason,
        },
        Tokens,
    )


def failed(outcome: str = "") -> LoggedEvent:
    decision = Decision(
        id="d", model="m", at=0.0, action="out", current=0, target=1, rule="r", reason="r", by="monitor"
    )
    record = ScaleRecord(id="p", decision=decision, state="failed", outcome=outcome)
    return LoggedEvent(7.0, "evt.plan.p", msgspec.json.encode(record))


def taken_back(times: int) -> list[LoggedEvent]:
    """A model gives an instance up for another so many times, and has it back a moment later."""
    moves: list[tuple[Action, str]] = [("in", "yield"), ("out", "decode")]
    return [decided(7.0 + 0.05 * number, *moves[number % 2]) for number in range(2 * times)]


def good() -> History:
    """A run in which a block arrived and ran, one request ended, and everything came to rest."""
    names = [spec.name for spec in SYSTEM.specs]
    return History(
        ready_at=2.0,
        calm_at=10.0,
        rested_at=20.0,
        versions={name: [VERSION] for name in names},
        sizes={VERSION: 1_000 * len(names)},
        copied_at=dict.fromkeys(names, 10.0),
        answers=[AskOutcome(0, "complete", record(RIGHT))],
        engines=[LaidOut("worker-0", block, True) for block in (0, 1)] + [Ran("worker-0", 0, 2, 3.0)],
        delivered=[Delivered(float(second), "worker-0", "worker-1", int(RATE)) for second in range(1, 30)],
        events=[
            lease(0.5, "worker-0", 1, "alive"),
            lease(0.5, "worker-1", 2, "alive"),
            frame(row(ASK.ask.max_tokens - 1)),
            *taken_back(2),
        ],
    )


Spoil = Callable[[History], object]
WRONG: list[tuple[str, Spoil]] = [
    ("tokens", lambda one: one.answers.__setitem__(0, AskOutcome(0, "complete", record([RIGHT[0] + 1, *RIGHT[1:]])))),
    ("tokens", lambda one: one.answers.__setitem__(0, AskOutcome(0, "complete", record(RIGHT[:-1])))),
    ("tokens", lambda one: one.answers.__setitem__(0, AskOutcome(0, "complete", record([*RIGHT[:-1], RIGHT[-1] + 1])))),
    (
        "told",
        lambda one: one.answers.__setitem__(
            0, AskOutcome(0, "complete", record(RIGHT), told=Told((TokenLogprobs(0.0),)))
        ),
    ),
    ("ends once", lambda one: one.events.append(frame(row(ASK.ask.max_tokens - 1, None)))),
    ("ends once", lambda one: one.events.append(frame(row(0, "stop")))),
    ("ends once", lambda one: one.answers.append(one.answers[0])),
    ("ends once", lambda one: one.events.append(frame(row(ASK.ask.max_tokens - 1), "worker-1"))),
    ("counts right", lambda one: setattr(one, "counted_for", 1.6)),
    ("counts once", lambda one: setattr(one, "twice_for", 1.6)),
    ("counts what is there", lambda one: one.gone_for.update({("router-0", "gateway-0-1"): 1.6})),
    ("acts in office", lambda one: one.usurped.append("router-0 gave gateway-0-1 to worker-0")),
    ("waits for the living", lambda one: one.awaited.update({("worker-0", "worker-1"): 1.1})),
    ("ends once", lambda one: one.answers.__setitem__(0, AskOutcome(0, "complete", record(RIGHT, 5.0, "stop")))),
    ("ends once", lambda one: one.answers.__setitem__(0, AskOutcome(0, "broken"))),
    ("ends once", lambda one: one.answers.__setitem__(0, AskOutcome(0, "left"))),
    ("ends once", lambda one: one.answers.__setitem__(0, AskOutcome(0, "late"))),
    ("ends once", lambda one: one.answers.__setitem__(0, AskOutcome(0, "refused", reason="503 why"))),
    ("ends once", lambda one: one.events.append(frame(row(ASK.ask.max_tokens)))),
    ("ends once", lambda one: one.events.append(frame(row(0, "error")))),
    ("blocks first", lambda one: one.engines.append(Ran("worker-0", 2, 3, 4.0))),
    ("blocks first", lambda one: one.engines.append(Ran("worker-1", 0, 1, 4.0))),
    ("blocks first", lambda one: one.engines.append(LaidOut("worker-0", 2, False))),
    ("copies back", lambda one: one.copied_at.clear()),
    ("copies back", lambda one: one.copied_at.update(m=17.0)),
    ("deaths by fault", lambda one: one.events.append(lease(9.0, "worker-1", 2, "dead", "silent"))),
    ("deaths by fault", lambda one: one.crashes.append("worker-1: ValueError")),
    ("deaths by fault", lambda one: one.events.append(lease(9.0, "worker-1", 3, "alive"))),
    ("given up by fault", lambda one: one.events.append(frame(row(ASK.ask.max_tokens - 1, attempt="-2")))),
    ("given up by fault", lambda one: one.events.append(failed())),
    ("epochs grow", lambda one: one.events.append(lease(9.0, "worker-0", 2, "alive", "heard again"))),
    ("epochs grow", lambda one: one.events.insert(0, lease(0.1, "worker-9", 9, "alive"))),
    (
        "links hold",
        lambda one: one.delivered.extend(Delivered(30.0, "worker-0", "worker-1", int(RATE)) for _ in "x" * 99),
    ),
    ("KV owned once", lambda one: one.overlaps.append("two have it")),
    ("KV owned once", lambda one: one.troubles.append("router: miscounted")),
    ("hears what is read", lambda one: one.told.update({("registry-0", "host-0 to read m"): 1.1})),
    ("loads for itself", lambda one: one.strays.append("worker-0 loads for p")),
    ("gives for good", lambda one: one.events.extend(taken_back(1))),
    ("rests", lambda one: setattr(one, "rested_at", None)),
    ("physics", lambda one: one.answers.__setitem__(0, AskOutcome(0, "complete", record(RIGHT, 0.001)))),
]


def test_nothing_is_wrong_with_a_good_run() -> None:
    assert check(SYSTEM, good()) == []


@pytest.mark.parametrize(("rule", "spoil"), WRONG)
def test_a_rule_is_broken_by_what_it_is_there_for(rule: str, spoil: Spoil) -> None:
    history = deepcopy(good())
    spoil(history)
    assert {violation.rule for violation in check(SYSTEM, history)} == {rule}


def test_every_rule_is_tested_and_says_why_it_is_there() -> None:
    assert {rule for rule, _ in WRONG} == set(RULES)
    assert all(rule.__doc__ for rule in RULES.values())


LONGER = replace(ASK, ask=replace(ASK.ask, max_tokens=9))
UNTIL_STOP = undisturbed(LONGER, VERSION)[:4]
STOPPED = replace(LONGER, wishes=Wishes(stop_token_ids=UNTIL_STOP[-1:], logprobs=2, prompt_logprobs=0))


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda answer: answer, None),
        (lambda answer: replace(answer, told=Told()), "told"),
        (lambda answer: replace(answer, told=replace(answer.told, prompt=answer.told.prompt[1:])), "told"),
        (lambda answer: replace(answer, record=replace(answer.record, finish_reason="length")), "ends once"),
        (lambda answer: replace(answer, told=replace(answer.told, made=answer.told.made[::-1])), "told"),
    ],
)
def test_an_answer_ends_with_a_token_that_ends_it_and_its_tokens_are_told(
    spoil: Callable[[AskOutcome], AskOutcome], rule: str | None
) -> None:
    assert undisturbed(STOPPED, VERSION) == UNTIL_STOP
    right = AskOutcome(0, "complete", record(UNTIL_STOP, 5.0, "stop"), told=tellable(STOPPED, UNTIL_STOP))
    history = replace_answer(good(), spoil(right))
    found = check(replace(SYSTEM, asks=[STOPPED, *SYSTEM.asks[1:]]), history)
    assert {one.rule for one in found} == (set() if rule is None else {rule})


def replace_answer(history: History, answer: AskOutcome) -> History:
    last = Tokens(
        request_id=f"gateway-0-{ASK.ask.index}",
        index=len(UNTIL_STOP) - 1,
        token_ids=UNTIL_STOP[-1:],
        finish_reason="stop",
    )
    events = [event for event in history.events if not event.subject.startswith("tok.")]
    return dataclass_replace(history, answers=[answer], events=[*events, frame(last)])


UPDATE, KILL = SeedFault(4.0, "update", ASK.model, other="/models/m.2"), SeedFault(4.0, "kill", "worker-1", 1.0)
GONE = "503 the version of the model that began this request is gone; send it again"


def test_an_answer_is_that_of_one_version_of_those_that_its_model_had() -> None:
    history = good()
    history.versions[ASK.model] = ["v0", VERSION]
    assert check(SYSTEM, history) == []
    mixed = [*undisturbed(LONGER, "v0")[:4], *undisturbed(LONGER, VERSION)[4:]]
    history.answers[:] = [AskOutcome(0, "complete", record(mixed))]
    history.events[:] = [event for event in history.events if not event.subject.startswith("tok.")]
    found = check(replace(SYSTEM, asks=[LONGER, *SYSTEM.asks[1:]]), history)
    assert [str(one) for one in found] == ["tokens: request 0 has a wrong token at 4 of 9"]


@pytest.mark.parametrize(("faults", "is_right"), [((UPDATE, KILL), True), ((UPDATE,), False), ((KILL,), False)])
def test_a_request_is_refused_where_its_version_may_be_gone(faults: tuple[SeedFault, ...], is_right: bool) -> None:
    history = good()
    history.answers[:] = [AskOutcome(0, "refused", record(RIGHT[:1], finish_reason=None), GONE)]
    assert (check(with_faults(*faults), history) == []) is is_right


REMOVE = SeedFault(4.0, "remove", ASK.model, 1.0)


@pytest.mark.parametrize(
    ("faults", "tokens", "is_right"),
    [((REMOVE,), 0, True), ((REMOVE,), 1, False), ((REMOVE, KILL), 1, True), ((), 0, False), ((KILL,), 1, False)],
)
def test_a_request_is_refused_where_its_model_is_removed(
    faults: tuple[SeedFault, ...], tokens: int, is_right: bool
) -> None:
    history = good()
    history.answers[:] = [
        AskOutcome(0, "refused", record(RIGHT[:tokens], finish_reason=None), "404 model 'm' was removed")
    ]
    assert (check(with_faults(*faults), history) == []) is is_right


def with_faults(*faults: SeedFault) -> SeedSystem:
    return replace(SYSTEM, faults=list(faults))


@pytest.mark.parametrize(
    ("fault", "is_blamed"),
    [
        (SeedFault(4.0, "kill", "worker-1", 1.0), True),
        (SeedFault(4.0, "lose", "", 1.0, 0.3), True),
        (SeedFault(4.0, "part", "registry-0", 1.0), False),
        (SeedFault(4.0, "stall", "", 1.0), False),
        (SeedFault(4.0, "kill", "worker-0", 1.0), False),
        (SeedFault(8.0, "kill", "worker-1", 1.0), False),
        (SeedFault(4.0, "role", "worker-1"), False),
    ],
)
def test_a_death_is_right_where_a_fault_can_be_why(fault: SeedFault, is_blamed: bool) -> None:
    history = good()
    history.events.append(lease(9.0, "worker-1", 2, "dead", "silent"))
    assert (check(with_faults(fault), history) == []) is is_blamed


@pytest.mark.parametrize(
    ("fault", "is_excused"),
    [
        (SeedFault(4.0, "outage", "", 1.0), False),
        (SeedFault(4.0, "delay", "", 1.0, 0.5), False),
        (SeedFault(4.0, "kill", "planner-0", 1.0), False),
        (SeedFault(4.0, "lose", "", 1.0, 0.3), True),
        (SeedFault(4.0, "kill", "worker-1", 1.0), True),
    ],
)
def test_only_a_worker_that_may_have_died_refuses_to_drain(fault: SeedFault, is_excused: bool) -> None:
    history = good()
    history.events.append(failed("worker-1 did not drain: this worker holds no instance, not m-1"))
    assert (check(with_faults(fault), history) == []) is is_excused


@pytest.mark.parametrize(
    ("fault", "is_excused"),
    [
        (SeedFault(4.0, "freeze", "router-0", 5.0), False),
        (SeedFault(4.0, "repeat", "", 1.0, 0.5), False),
        (SeedFault(4.0, "delay", "", 1.0, 0.5), True),
        (SeedFault(4.0, "part", "router-0", 5.0), True),
        (SeedFault(4.0, "lose", "", 5.0, 0.5), True),
    ],
)
def test_only_a_router_that_cannot_hear_of_its_end_in_time_acts_after_it(fault: SeedFault, is_excused: bool) -> None:
    history = good()
    history.usurped.append("router-0 gave gateway-0-1 to worker-0")
    assert (check(with_faults(fault), history) == []) is is_excused


def test_a_router_that_slept_or_missed_messages_may_count_what_is_gone_and_one_after_an_outage_not() -> None:
    history = good()
    history.gone_for["router-0", "gateway-0-1"] = 1.6
    kinds: list[tuple[SeedFaultKind, bool]] = [("outage", False), ("delay", False), ("lose", True), ("stall", True)]
    for what, holds in kinds:
        assert (check(with_faults(SeedFault(4.0, what, "", 1.0, 0.5)), history) == []) is holds
    assert check(with_faults(SeedFault(4.0, "freeze", "router-0", 1.0)), history) == []


def test_a_gateway_that_dies_breaks_its_connections() -> None:
    history = good()
    history.answers[0] = AskOutcome(0, "broken")
    assert check(with_faults(SeedFault(4.0, "kill", "gateway-0", 1.0)), history) == []


def test_who_was_declared_dead_for_its_fault_joins_again_whenever_it_can() -> None:
    history = good()
    history.events += [
        lease(5.1, "worker-1", 2, "dead", "it ended, and said so"),
        lease(19.0, "worker-1", 3, "alive"),
    ]
    assert check(with_faults(SeedFault(3.0, "stop", "worker-1", 0.5)), history) == []
    history.events.append(lease(20.0, "worker-1", 4, "alive"))
    assert [one.rule for one in check(with_faults(SeedFault(3.0, "stop", "worker-1", 0.5)), history)] == [
        "deaths by fault"
    ]


@pytest.mark.parametrize(("each", "is_broken"), [(1, False), (2, False), (5, True)])
def test_each_channel_has_messages_under_way_and_no_channel_is_ahead_of_the_link(each: int, is_broken: bool) -> None:
    """What passed the link before one counts comes at once from many channels, but not more and more of it."""
    history = good()
    history.delivered += [
        Delivered(30.0, "worker-0", "worker-1", int(RATE), channel) for channel in range(20) for _ in range(each)
    ]
    assert bool(check(SYSTEM, history)) is is_broken


def test_heartbeats_between_chunks_are_not_taken_for_chunks() -> None:
    history = good()
    history.delivered += [
        Delivered(30.0, "worker-0", "worker-1", size_bytes, channel)
        for channel in range(20)
        for size_bytes in (int(RATE), 1, int(RATE))
    ]
    assert check(SYSTEM, history) == []


def test_a_link_that_carries_half_of_its_rate_too_much_for_long_is_broken() -> None:
    history, topology = good(), SYSTEM.cluster.topology
    one, other, *_ = topology.gpus
    rate = min(link.rate for link in topology.path(one.id, other.id).resources)
    history.delivered = [
        Delivered(30.0 + number / 1.5, "worker-0", "worker-1", int(rate), number % 2) for number in range(30)
    ]
    assert {one.rule for one in check(SYSTEM, history)} == {"links hold"}
