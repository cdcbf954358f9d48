"""How many instances have which role once running scales are done, and what KV is still to be sent."""

from msgspec.structs import replace

from livescale.services.monitor.role_signals import RoleLoad, observe_roles
from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.scaling import RoleMove, ScaleRecord
from tests.monitor.reports import load, record, serving

PREFILLS = load(waiting_tokens=100, kv_blocks_used=3, kv_block_tokens=16, kv_tokens_per_second=1000.0)


def worker(id: str, role: Role, **more: object) -> WorkerReport:
    return replace(serving(id, **more), role=role)  # type: ignore[arg-type]


POOL = [worker("p", "prefill", engine=PREFILLS), worker("d", "decode"), worker("c", "colocated")]


def planned(*roles: Role, state: str = "loading") -> ScaleRecord:
    """A scale that adds instances of these roles."""
    one = record(state, [f"new-{number}" for number in range(len(roles))])  # type: ignore[arg-type]
    assert one.plan is not None
    instances = [replace(made, role=role) for made, role in zip(one.plan.instances, roles, strict=True)]
    return replace(one, plan=replace(one.plan, instances=instances))


def counts(*records: ScaleRecord, leaving: tuple[str, ...] = (), model: str = "m") -> tuple[int, int, int]:
    found = observe_roles(POOL, records, model, leaving)
    return found.prefill, found.decode, found.others


def test_instances_are_counted_as_they_will_be_once_plans_are_carried_out() -> None:
    assert counts() == (1, 1, 1)
    assert counts(planned("prefill", "decode")) == (2, 2, 1)
    assert counts(planned("prefill", state="done")) == (1, 1, 1)
    assert counts(planned("prefill"), model="other") == (1, 1, 1)
    assert counts(leaving=("i-p",)) == (0, 1, 1)


def test_a_change_of_role_counts_at_once() -> None:
    move = RoleMove(worker="p", instance="i-p", epoch=1, role="decode", before="prefill")
    switching = replace(record("switching", [], "switch"), moves=[move])
    found = observe_roles(POOL, [switching], "m", ())
    assert (found.prefill, found.decode, found.unsent_tokens) == (0, 2, 0)


def test_what_is_to_be_sent_are_prompts_that_wait_and_kv_that_lies_there() -> None:
    found = observe_roles(POOL, [], "m", ())
    assert (found.unsent_tokens, found.kv_rate) == (100 + 3 * 16, 1000.0)


def test_the_rate_is_that_of_a_typical_instance_and_unknown_where_none_was_measured() -> None:
    rates = [worker(f"p{rate}", "prefill", engine=load(kv_tokens_per_second=rate)) for rate in (10.0, 20.0, 900.0)]
    assert observe_roles(rates, [], "m", ()).kv_rate == 20.0
    assert observe_roles([], [], "m", ()) == RoleLoad()
