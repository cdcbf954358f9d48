from livescale.services.planner.plans.plan import TransferFlow, find_tails


def test_tails_are_the_targets_whose_nic_sends_nothing_over_the_network() -> None:
    nics = {"s": "s", "a": "a", "b": "box", "c": "box", "d": "d"}
    flows = [
        TransferFlow("s", "a", (0,)),
        TransferFlow("a", "b", (0,)),
        TransferFlow("b", "c", (0,), over="domain"),
    ]
    assert find_tails(flows, ["a", "b", "c"], nics) == ("b", "c")
    assert find_tails([*flows, TransferFlow("c", "d", (0,))], ["a", "b", "c", "d"], nics) == ("d",)
