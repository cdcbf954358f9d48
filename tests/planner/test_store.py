from itertools import islice

from livescale.services.planner.fleet import ServingInstance
from livescale.services.planner.scale_in import ScaleIn
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.store import KEPT, ScaleStore
from livescale.shared.transfer.chunks import TICKETS
from tests.planner.samples import acknowledge, decision, happened, scale_out, spare, transfer


def running(id: str, target: str, source: str = "s") -> ScaleOut:
    scale = scale_out([target], source=source)
    scale.id = id
    acknowledge(scale, scale.start(10.5))
    return scale


def test_running_scales_tell_what_they_add_reserve_and_send() -> None:
    store = ScaleStore(first_ticket=1)
    store.add(running("scale-1", "a"))
    store.add(running("scale-2", "b"))
    drain = ScaleIn("scale-3", decision("in"), [ServingInstance("i-c", ("c",), 0)], {"c": 1}, 60.0)
    drain.start(11.0)
    store.add(drain)
    assert store.coming("m") == {"i-a", "i-b"}
    assert store.coming("other") == frozenset()
    assert store.leaving() == {"i-c"}
    assert store.reserved() == {"a", "b"}
    assert store.sending() == {"s": 2}
    assert store.receiving("v", 0) == {"a", "b"}
    assert store.receiving("another", 0) == frozenset()
    drain.on_report(spare("c"), 12.0)
    assert store.leaving() == frozenset()


def test_what_one_scale_adds_another_may_drain_and_recall_meanwhile() -> None:
    store = ScaleStore(first_ticket=1)
    store.add(running("scale-1", "a"))
    drain = ScaleIn("scale-2", decision("in"), [ServingInstance("i-a", ("a",), 0)], {"a": 1}, 60.0)
    drain.start(11.0)
    store.add(drain)
    store.check_invariants()
    drain.recall(["a"], "more are needed", 12.0)
    store.check_invariants()
    assert (store.coming("m"), store.leaving()) == ({"i-a"}, frozenset())
    assert [one.id for one in store.planned("m")] == ["i-a"]


def test_what_one_scale_recalled_another_may_drain_and_recall_before_it_says_that_it_serves() -> None:
    store, drained = ScaleStore(first_ticket=1), [ServingInstance("i-a", ("a",), 0)]
    first, second = (ScaleIn(id, decision("in"), drained, {"a": 1}, 60.0) for id in ("scale-1", "scale-2"))
    first.start(11.0)
    store.add(first)
    [order] = first.recall(["a"], "more are needed", 12.0)
    store.add(second)
    assert store.recalling(second.leaving) == [first]
    first.yield_recalled(second.leaving, 13.0)
    second.start(13.0)
    assert (first.wants(order), first.state, store.leaving()) == (False, "done", {"i-a"})
    second.recall(["a"], "more are needed", 14.0)
    store.check_invariants()
    assert (store.recalling({"i-a"}), store.recalling({"i-b"})) == ([second], [])


def test_who_receives_from_a_stranded_target_of_another_plan_passes_nothing_on() -> None:
    store = ScaleStore(first_ticket=1)
    ahead = running("scale-1", "a")
    store.add(ahead)
    store.add(running("scale-2", "b", source="a"))
    assert store.receiving("v", 0) == {"a", "b"}
    ahead.delivery.strand(["a"], "its sender died")
    assert store.receiving("v", 0) == frozenset()


def test_a_ticket_is_never_that_of_a_running_plan() -> None:
    store = ScaleStore(first_ticket=TICKETS + 76)
    store.add(running("scale-1", "a"))  # has ticket 77
    assert list(islice(store.fresh_tickets(), 3)) == [76, 78, 79]
    assert next(store.fresh_tickets()) == 80


def test_records_are_the_newest_of_one_model_or_of_all() -> None:
    store = ScaleStore(first_ticket=1)
    for number in range(3):
        store.add(running(f"scale-{number}", f"w-{number}"))
    assert [scale.id for scale in store.running()] == ["scale-0", "scale-1", "scale-2"]
    assert [record.id for record in store.records("m", 2)] == ["scale-1", "scale-2"]
    assert store.records("m", 0) == []
    assert store.records("other", 2) == []
    assert [record.id for record in store.records(None, 99)] == ["scale-0", "scale-1", "scale-2"]


def test_old_scales_are_forgotten_but_none_that_runs() -> None:
    store = ScaleStore(first_ticket=1)
    store.add(running("first", "a"))
    for number in range(KEPT + 5):
        scale = running(f"scale-{number}", f"w-{number}")
        acknowledge(scale, scale.on_transfer(transfer(f"w-{number}", "whole"), 12.0))
        scale.on_instance(happened("serving", f"w-{number}"), 13.0)
        store.add(scale)
    assert store.get("first") is not None
    assert store.get("scale-0") is None
    assert len(store.records(None, 10_000)) == KEPT
    assert [scale.id for scale in store.concerned("i-a")] == ["first"]
