"""The commands of a plan: what its nodes are told."""

from itertools import count

from msgspec.structs import replace

from livescale.services.planner.orders import ticketed
from livescale.services.planner.plans.plan import TransferFlow, TransferPlan
from livescale.shared.messages.transfers import FromDisk, Send
from tests.control.fakes import BLOCKS, manifest
from tests.planner.samples import ENTRY, VERSION, orders


def test_a_host_that_has_the_model_on_disk_only_is_told_what_to_read() -> None:
    made = orders(["a"])
    [flow] = made.plan.flows
    told = [next(made.sends("s", [replace(flow, from_disk=on_disk)])).message for on_disk in (True, False)]
    assert all(isinstance(message, Send) for message in told)
    assert [message.from_disk for message in told if isinstance(message, Send)] == [
        FromDisk(spec=ENTRY.spec, manifest=manifest(VERSION)),
        None,
    ]


def test_flows_of_disks_say_so_also_where_they_go_over_the_network() -> None:
    every = tuple(range(BLOCKS))
    flows = (
        TransferFlow("h0", "a", every, over="disk"),
        TransferFlow("h1", "b", every),
        TransferFlow("a", "c", (0, 1)),
    )
    plan = TransferPlan(policy="local", flows=flows, targets=("a", "b", "c"), tails=())
    made = ticketed(plan, BLOCKS, count(5), {"h0", "h1"})
    assert [(flow.ticket, flow.from_disk, flow.blocks) for flow in made] == [
        (5, True, []),
        (6, True, []),
        (7, False, [0, 1]),
    ]
