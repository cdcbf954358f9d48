"""What a plan says of itself: the tree of its flows, the nodes that run before they are whole, and what a node
moved."""

from livescale.shared.messages.transfers import Flow, Plan, PlannedInstance, Transfer


def plan(*flows: Flow, live_targets: tuple[str, ...] = ()) -> Plan:
    instances = [PlannedInstance(id="i-0", ranks=["b", "c"])]
    return Plan(
        id="p",
        model="m",
        version="v",
        instances=instances,
        flows=list(flows),
        size_bytes=1,
        live_targets=[*live_targets],
    )


def flow(sender: str, receiver: str, steps: tuple[int, ...] = ()) -> Flow:
    return Flow(sender=sender, receiver=receiver, ticket=1, steps=list(steps), blocks=list(range(len(steps))))


def test_paths_lead_from_the_sources_to_the_leaves() -> None:
    made = plan(flow("a", "b"), flow("b", "c"), flow("b", "d"))
    assert made.paths == [["a", "b", "c"], ["a", "b", "d"]]


def test_a_receiver_of_several_flows_hangs_below_who_sends_to_it_first() -> None:
    made = plan(flow("late", "b", steps=(4,)), flow("early", "b", steps=(1,)))
    assert made.paths == [["early", "b"]]


def test_flows_that_close_a_circle_end() -> None:
    made = plan(flow("a", "b"), flow("b", "a"), flow("b", "c"))
    assert made.paths == [["a", "b", "c"]]


def test_an_instance_is_live_where_its_leading_rank_is() -> None:
    (instance,) = plan().instances
    assert plan(live_targets=("b",)).is_live(instance)
    assert not plan(live_targets=("c",)).is_live(instance)


def test_what_a_node_moved_is_said_in_words() -> None:
    moved = Transfer(plan_id="p", node="n", state="whole", at=0.0, received_bytes=1_500_000, shared_bytes=2_000_000)
    assert moved.how == "1.5 MB received, 2.0 MB shared"
    assert Transfer(plan_id="p", node="n", state="started", at=0.0).how == "nothing"
