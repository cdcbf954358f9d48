from itertools import islice

from livescale.services.planner.fleet import Serving
from livescale.services.planner.scale_in import ScaleIn
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.store import KEPT, TICKETS, Book
from tests.planner.samples import acknowledge, decision, happened, scale_out, spare, transfer


def running(id: str, target: str) -> ScaleOut:
    scale = scale_out([target])
    scale.id = id
    acknowledge(scale, scale.start(10.5))
    return scale


def test_running_scales_tell_what_they_add_reserve_and_send() -> None:
    book = Book(first_ticket=1)
    book.add(running("scale-1", "a"))
    book.add(running("scale-2", "b"))
    drain = ScaleIn("scale-3", decision("in"), [Serving("i-c", ("c",), 0)], {"c": 1}, 60.0)
    drain.start(11.0)
    book.add(drain)
    assert book.coming("m") == {"i-a", "i-b"}
    assert book.coming("other") == frozenset()
    assert book.leaving() == {"i-c"}
    assert book.reserved() == {"a", "b"}
    assert book.sending() == {"s": 2}
    assert book.receiving("v", 0) == {"a", "b"}
    assert book.receiving("another", 0) == frozenset()
    drain.on_report(spare("c"), 12.0)
    assert book.leaving() == frozenset()


def test_a_ticket_is_never_that_of_a_running_plan() -> None:
    book = Book(first_ticket=TICKETS + 76)
    book.add(running("scale-1", "a"))  # has ticket 77
    assert list(islice(book.fresh_tickets(), 3)) == [76, 78, 79]
    assert next(book.fresh_tickets()) == 80


def test_records_are_the_newest_of_one_model_or_of_all() -> None:
    book = Book(first_ticket=1)
    for number in range(3):
        book.add(running(f"scale-{number}", f"w-{number}"))
    assert [scale.id for scale in book.running()] == ["scale-0", "scale-1", "scale-2"]
    assert len(book.records("m", 2)) == 2
    assert book.records("other", 2) == []
    assert len(book.records(None, 99)) == 3


def test_old_scales_are_forgotten_but_none_that_runs() -> None:
    book = Book(first_ticket=1)
    book.add(running("first", "a"))
    for number in range(KEPT + 5):
        scale = running(f"scale-{number}", f"w-{number}")
        acknowledge(scale, scale.on_transfer(transfer(f"w-{number}", "whole"), 12.0))
        scale.on_instance(happened("serving", f"w-{number}"), 13.0)
        book.add(scale)
    assert book.get("first") is not None
    assert book.get("scale-0") is None
    assert len(book.records(None, 10_000)) == KEPT
    assert [scale.id for scale in book.concerned("i-a")] == ["first"]
