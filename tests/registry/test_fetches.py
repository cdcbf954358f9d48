"""What a host that fetches a copy, and its sender, are told."""

from livescale.services.registry.fetches import CopyFetch
from livescale.shared.messages.membership import Member, ServiceName
from livescale.shared.messages.model_spec import ModelSpec
from tests.control.fakes import manifest


def member(id: str, epoch: int = 1, service: ServiceName = "host") -> Member:
    return Member(service=service, id=id, pid=1, host="box", epoch=epoch, lease="alive", address=id.encode())


def fetch() -> CopyFetch:
    return CopyFetch("copy-1", ModelSpec(name="m", path="/m"), manifest("v"), member("host-0", 3), b"secret")


def test_both_ends_of_a_flow_are_told_of_each_other_each_in_its_epoch() -> None:
    one, worker = fetch(), member("worker-1", 7, "worker")
    ask, send = one.ask(worker, 9), one.send(worker)
    [inflow], [outflow] = ask.inflows, send.outflows
    assert (inflow.ticket, inflow.upstream.id, inflow.upstream.place, ask.epoch) == (9, "worker-1", "worker", 3)
    assert (outflow.ticket, outflow.downstream.id, outflow.downstream.place, send.epoch) == (9, "host-0", "host", 7)
    assert (ask.chunk_bytes, ask.secret, ask.plan_id) == (send.chunk_bytes, send.secret, send.plan_id)


def test_without_a_source_the_host_is_told_to_read_the_rest() -> None:
    assert fetch().ask(None, 9).inflows == []


def test_a_lost_source_is_replaced_unless_another_is_being_asked_already() -> None:
    one = fetch()
    one.ask(member("host-1"), 9)
    assert one.lose()
    one.ask(member("host-2"), 10)
    one.is_asking = True
    assert not one.lose()
    assert one.lost == {"host-1", "host-2"}


def test_it_is_over_when_its_host_is_gone_or_has_joined_anew() -> None:
    assert not fetch().is_over({"host-0": member("host-0", 3)})
    assert fetch().is_over({"host-0": member("host-0", 4)})
    assert fetch().is_over({})
