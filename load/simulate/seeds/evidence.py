"""What the invariants look at, found in the history of a run, and how full the links were. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from livescale.load.simulate.faults import MESSAGE_KINDS
from livescale.load.simulate.seeds.asks import SeedAsk
from livescale.load.simulate.seeds.history import COMMANDS, AskOutcome, History, SeedFault, Told
from livescale.load.simulate.seeds.random_models import HIDDEN_SIZE, VOCABULARY
from livescale.load.simulate.seeds.system import SeedSystem
from livescale.services.worker.engine.modelled_steps import (
    choose_token,
    even_logprobs,
    first_state,
    follow,
    made_up_vector,
)
from livescale.services.worker.scheduling.batch import TokenSampling
from livescale.shared.bus.codec import decode
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.requests import Sampling, TokenFrame, TokenLogprobs
from livescale.shared.messages.scaling import Decision, ScaleRecord
from livescale.shared.subjects import DECISION, LEASE, PLAN, TOKENS

MUTE = ("part", "outage", "lose")  # faults by which messages are lost
FATAL = ("kill", "stop", "freeze", "part")  # faults after which a process may be declared dead
HARMLESS = (*COMMANDS, "slow-disk")  # faults by which nothing may be lost
EVERYBODY = ("stall", "outage", "noise", *MESSAGE_KINDS)  # faults that strike all
KEPT_WAITING = "kept others waiting"
FIRST_ID_DASHES = 2  # in gateway-0-7; a request that is submitted again has its attempt behind one more
SUSPECTED_SECONDS = 2.0  # a process that is silent for as long has been suspected
SOON_SECONDS = 0.1  # in which nothing new is learned of what models need
LEASE_SECONDS = 6.0  # after a fault is over, its victim may still be declared dead


def answered(system: SeedSystem, history: History) -> Iterator[tuple[SeedAsk, AskOutcome]]:
    """Yield each request that ended, with its answer."""
    return ((system.asks[answer.number], answer) for answer in history.answers)


def undisturbed(ask: SeedAsk, version: str, adapter: str | None = None) -> list[int]:
    """The tokens of a request that nothing happens to, by the versions of the model and of its adapter."""
    one, stops = ask.ask, tuple(ask.wishes.stop_token_ids)
    *_, state = follow(first_state(version, adapter), one.prompt)
    made: list[int] = []
    while len(made) < one.max_tokens and not ends_answer(ask, made):
        forbidden = stops if len(made) < ask.wishes.min_tokens else ()
        sampling = TokenSampling(Sampling(temperature=one.temperature, seed=one.seed), len(made), forbidden, stops)
        made.append(choose_token(state, sampling, VOCABULARY, ends=True))
        [state] = follow(state, made[-1:])
    return made


def vector_of(ask: SeedAsk, version: str) -> Told:
    """What is told of a request that asks for a vector."""
    *_, state = follow(first_state(version), ask.ask.prompt)
    return Told((TokenLogprobs(0.0, pooled=made_up_vector(state, HIDDEN_SIZE)),))


def ends_answer(ask: SeedAsk, made: Sequence[int]) -> bool:
    """Whether the last of these tokens ends the answer before it is as long as it may be."""
    return bool(made) and made[-1] in ask.wishes.stop_token_ids


def tellable(ask: SeedAsk, made: Sequence[int]) -> Told:
    """How likely these tokens of an answer and those of its prompt are, as far as the client wants to know."""
    wishes = ask.wishes
    return Told(_even(made, wishes.logprobs), _even(ask.ask.prompt[1:], wishes.prompt_logprobs))


def _even(tokens: Sequence[int], top: int | None) -> tuple[TokenLogprobs, ...]:
    """What is told of tokens, of which all are equally likely: with so many others, or nothing."""
    return () if top is None else tuple(even_logprobs(token, top, VOCABULARY) for token in tokens)


def places_of(system: SeedSystem) -> dict[str, str]:
    """The place in the topology of each process that has a link, by its id."""
    topology = system.cluster.topology
    hosts = {f"host-{number}": host.id for number, host in enumerate(topology.hosts)}
    return hosts | {f"worker-{number}": gpu.id for number, gpu in enumerate(topology.gpus)}


def token_frames(history: History) -> Iterator[TokenFrame]:
    """Yield the tokens that were sent to gateways, as they were sent."""
    for event in history.events:
        if event.subject.startswith("tok."):
            frame = decode(TOKENS.type, event.data, json=TOKENS.json)
            if isinstance(frame, TokenFrame):
                yield frame


def leases(history: History) -> Iterator[tuple[float, LeaseChanged]]:
    """Yield the registry's judgements, each with its time."""
    for event in history.events:
        if event.subject.startswith("evt.lease."):
            yield event.at, decode(LEASE.type, event.data, json=LEASE.json)


def scales(history: History) -> Iterator[ScaleRecord]:
    """Yield what was told of each scale, again and again."""
    for event in history.events:
        if event.subject.startswith("evt.plan."):
            yield decode(PLAN.type, event.data, json=PLAN.json)


def failed_scales(history: History) -> Iterator[str]:
    """Yield each scale that failed, with its outcome."""
    return (f"{one.id} failed: {one.outcome}" for one in scales(history) if one.state == "failed")


def has_slow_pipeline(history: History) -> bool:
    """Whether a pipeline was given up for a member that loaded for too long after another one was whole. If that leads,
    it gives its requests back."""
    return any(pipeline.reason.endswith(KEPT_WAITING) for one in scales(history) for pipeline in one.pipelines)


def taken_back(history: History) -> Counter[str]:
    """How often each model was to have an instance more just after it had given one up for another model."""
    given, counts = dict[str, float](), Counter[str]()
    for event in history.events:
        if not event.subject.startswith("evt.decision."):
            continue
        decision: Decision = decode(DECISION.type, event.data, json=DECISION.json)
        if decision.rule == "yield":
            given[decision.model] = event.at
        elif decision.action == "out" and event.at - given.get(decision.model, -inf) < SOON_SECONDS:
            counts[decision.model] += 1
    return counts


def resumed_requests(history: History) -> list[str]:
    """The requests that went on elsewhere after they had tokens, by the ids under which they did.

    One that was lost before its first token begins with it elsewhere, and is none of them.
    """
    first = dict[str, int]()  # the index of the first token, by id
    for frame in token_frames(history):
        for row in frame.rows:
            if row.request_id.count("-") > FIRST_ID_DASHES:
                first.setdefault(row.request_id, row.index)
    return [id for id, index in first.items() if index]


def strikes(fault: SeedFault, services: Sequence[str]) -> bool:
    """Whether a fault has anything to do with these services."""
    whom = (fault.who.rpartition("-")[0], fault.other)
    by_name = any(service in services for service in whom) and fault.what not in HARMLESS
    return by_name or fault.what in EVERYBODY


def was_struck(faults: Sequence[SeedFault], id: str, at: float) -> bool:
    """Whether a fault can be why this process was declared dead `at` seconds after the system was ready."""
    able = [fault for fault in faults if (fault.who == id and fault.what in FATAL) or fault.what == "lose"]
    return any(fault.at <= at <= _known_by(fault, faults) for fault in able)


def _known_by(fault: SeedFault, faults: Sequence[SeedFault]) -> float:
    """When the registry knows at the latest that a fault has struck: it hears of nothing while it is away itself, or
    the bus is, or everybody stands still."""
    registry = (one for one in faults if one.who.startswith("registry-") and one.what in FATAL)
    away = [*registry, *(one for one in faults if one.what in ("stall", "outage"))]
    latest = fault.ends
    for one in sorted(away, key=lambda one: one.at):
        if one.at <= latest + LEASE_SECONDS:
            latest = max(latest, one.ends)
    return latest + LEASE_SECONDS


def may_lose_orders(fault: SeedFault, faults: Sequence[SeedFault]) -> bool:
    """Whether an order to read may be lost and nobody suspects it. The registry then waits for its answer as long as a
    host may take that fetches files from a hub. One that slept while it was cut off missed nothing until it woke."""
    asleep = [one for one in faults if one.what == "stall" or (one.what == "freeze" and one.who == fault.who)]
    since = max([fault.at, *(one.ends for one in asleep if one.at < fault.ends)])
    return fault.what == "lose" or (fault.what == "part" and fault.ends - since < SUSPECTED_SECONDS)


def may_kill_workers(fault: SeedFault) -> bool:
    """Whether a worker may be another one after the fault, or be taken for dead."""
    return fault.what == "lose" or (fault.what in FATAL and fault.who.startswith("worker-"))


def begins_anew(fault: SeedFault) -> bool:
    """Whether the fault ends a router: the next one asks workers what they run."""
    return fault.who.startswith("router-") and fault.what in ("kill", "stop")
