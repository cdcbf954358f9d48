"""What must hold of clients' requests: their tokens, what is told of these, and their ends. Pure, as all rules are."""

from collections.abc import Iterator, Sequence

from livescale.load.simulate.seeds.asks import PATIENCE_SECONDS, SeedAsk
from livescale.load.simulate.seeds.evidence import (
    answered,
    ends_answer,
    strikes,
    tellable,
    token_frames,
    undisturbed,
    vector_of,
)
from livescale.load.simulate.seeds.history import AskOutcome, History, index_of, is_gateway, removed, updated
from livescale.load.simulate.seeds.system import SeedSystem

VERSION_GONE = "the version of the model that began this request is gone"
REMOVED = ("was removed", "is not registered", "does not exist")  # in what is said of a model
LATE = ("part", "outage", "stall", "lose", "delay", "repeat")  # faults by which messages are lost or late


def tokens(system: SeedSystem, history: History) -> Iterator[str]:
    """A client gets the tokens of an undisturbed request, or the first of them: nothing else may decide a token."""
    for ask, answer in answered(system, history):
        if answer.record is None or (answer.end != "complete" and not answer.record.token_ids):
            continue  # of a model that was never ready not even the version is known
        got = answer.record.token_ids
        # An answer is that of one version, from its first token to its last.
        rights = [undisturbed(ask, version, answer.adapter) for version in history.versions[ask.model]]
        right = next((one for one in rights if got == one[: len(got)]), rights[0])
        if got != right[: len(got)]:
            yield f"request {answer.number} has a wrong token at {_difference(got, right)} of {len(right)}"
        elif answer.end == "complete" and got != right:
            yield f"request {answer.number} ended with {len(got)} of {len(right)} tokens"


def told(system: SeedSystem, history: History) -> Iterator[str]:
    """A client that asks how likely tokens are is told of each of them once, and of the right one. So is one that asks
    for a vector."""
    for ask, answer in answered(system, history):
        if answer.end != "complete" or answer.record is None:
            continue
        if ask.wishes.pools:
            if answer.told not in [vector_of(ask, version) for version in history.versions[ask.model]]:
                yield f"request {answer.number} has a wrong vector"
            continue
        right = tellable(ask, answer.record.token_ids)
        of_answer, of_prompt = (answer.told.made, right.made), (answer.told.prompt, right.prompt)
        for what, (got, wanted) in (("answer", of_answer), ("prompt", of_prompt)):
            if got != wanted:
                counts, place = f"{len(got)} of {len(wanted)}", _difference(got, wanted)
                yield f"request {answer.number} was told of {counts} tokens of its {what}, wrong at {place}"


def ends_once(system: SeedSystem, history: History) -> Iterator[str]:
    """A request ends once: with all tokens, or by its client, its deadline or the death of its gateway, or as the
    version that began it is gone."""
    gateway_ends = any(fault.what in ("kill", "stop") and is_gateway(fault.who) for fault in system.faults)
    for ask, answer in answered(system, history):
        reason = answer.record.finish_reason if answer.record is not None else None
        allowed = {
            "complete": reason == ("stop" if _is_stopped(ask, answer) else "length"),
            "late": ask.patience < PATIENCE_SECONDS,
            "left": ask.leaves is not None,
            "broken": gateway_ends,
            "refused": may_be_refused(system, ask.model, answer.reason, has_begun=_has_begun(answer)),
        }
        if not allowed[answer.end]:
            yield f"request {answer.number} was {answer.end} ({reason}): {answer.reason}"
    numbers = [answer.number for answer in history.answers]
    yield from (f"request {number} ended twice" for number in sorted(set(numbers)) if numbers.count(number) > 1)
    yield from ends_on_the_bus(system, history)


def may_be_refused(system: SeedSystem, model: str, reason: str, *, has_begun: bool) -> bool:
    """Whether a request may end for this reason: its model is removed, or its version gone. One that has begun is run
    to its end, unless it may have lost its worker when no other one had its version any more."""
    may_lose = not all(fault.is_command for fault in system.faults)
    if any(words in reason for words in REMOVED):
        return model in removed(system.faults) and (may_lose or not has_begun)
    return VERSION_GONE in reason and bool(updated(system.faults)) and may_lose


def ends_on_the_bus(system: SeedSystem, history: History) -> Iterator[str]:
    """Whoever runs a request to its end, ends it after as many tokens as were asked for, or with one that ends it.

    No other worker ends it, too, unless messages were lost or late: a router then admits it again, which does no harm.
    """
    asks, ended = {ask.ask.index: ask for ask in system.asks}, dict[str, str]()
    in_time = not any(fault.what in LATE or strikes(fault, ("worker", "gateway")) for fault in system.faults)
    for frame in token_frames(history):
        for row in frame.rows:
            ask = asks[index_of(row.request_id)]
            most, is_stopped = ask.ask.max_tokens, ends_answer(ask, row.token_ids)
            stop, reason = row.index + len(row.token_ids), row.finish_reason
            wrong = {
                None: is_stopped or stop == most,
                "length": is_stopped or stop != most,
                "stop": not is_stopped,
                "error": not may_be_refused(system, ask.model, row.error or "", has_begun=row.index > 0),
            }
            if stop > most or wrong.get(reason):
                yield f"{row.request_id} has {stop} of {most} tokens at {frame.worker}: {reason} {row.error}"
            first = ended.setdefault(row.request_id, frame.worker) if reason in ("length", "stop") else frame.worker
            if in_time and first != frame.worker:
                yield f"{row.request_id} was run to its end by {first} and by {frame.worker}"


def _has_begun(answer: AskOutcome) -> bool:
    """Whether its client has a token of the answer."""
    return answer.record is not None and bool(answer.record.token_ids)


def _is_stopped(ask: SeedAsk, answer: AskOutcome) -> bool:
    """Whether a token has ended the answer."""
    return answer.record is not None and ends_answer(ask, answer.record.token_ids)


def _difference(got: Sequence[object], wanted: Sequence[object]) -> int:
    """The first place at which they differ, where one of them may end."""
    pairs = enumerate(zip(got, wanted, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(got), len(wanted)))
