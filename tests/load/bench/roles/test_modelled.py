"""The modelled cluster of auto-roles: what is in time, and a few requests through it."""

from msgspec.structs import replace

from livescale.load.bench.roles.modelled import attained, run
from livescale.load.bench.roles.modelled_system import INSTANCES, VOCABULARY, RolesSystem
from livescale.load.records import RequestRecord, find_fault
from livescale.load.simulate.start import made_up_asks, quiet
from livescale.load.trace import Arrival

GOOD = RequestRecord(
    index=0,
    due=10.0,
    sent=10.0,
    ended=11.0,
    prompt_tokens=1_000,
    asked_tokens=3,
    finish_reason="length",
    token_ids=[1, 2, 3],
    token_at=[10.52, 10.53, 10.56],
)


def test_a_request_is_in_time_by_its_first_token_and_by_the_mean_of_its_gaps() -> None:
    assert attained([GOOD], 0.0201).both == 1
    late = replace(GOOD, token_at=[10.54, 10.55, 10.58])
    found = attained([GOOD, late], 0.0201)
    assert (found.both, found.ttft, found.tbt, found.requests) == (0.5, 0.5, 1.0, 2)
    assert attained([GOOD, late], 0.0199).tbt == 0


def test_what_failed_is_late_and_what_came_before_is_not_counted() -> None:
    failed = replace(GOOD, token_ids=[1, 2], token_at=[10.52, 10.53])
    assert attained([GOOD, failed], 0.022).both == 0.5
    early = replace(failed, due=5.0)
    assert attained([early, GOOD], 0.022, after=5.0) == attained([GOOD], 0.022)


def test_requests_go_through_eight_instances_with_fixed_roles() -> None:
    trace = tuple(Arrival(number / 20, 200, 3) for number in range(8))
    asks = made_up_asks(trace, VOCABULARY, seed=1)
    assert [len(ask.prompt) for ask in asks] == [200] * 8
    with quiet():
        records = run(RolesSystem(name="split", disaggregation="on", prefill=INSTANCES - 1), asks, seed=1)
    assert [find_fault(record) for record in records] == [None] * 8
    assert attained(records, 0.022).both == 1
