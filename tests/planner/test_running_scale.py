"""What every scale has: its phases, its record and its end."""

from msgspec.structs import replace

from livescale.shared.messages.transfers import Serve
from tests.planner.samples import acknowledge, died, happened, loading, phases, serving, started, transfer


def test_a_scale_runs_through_its_phases() -> None:
    scale = started(["a"])
    assert scale.take_change()
    scale.on_transfer(transfer("a", "started", 12.0), 12.0)
    [serve] = scale.on_transfer(transfer("a", "whole", 13.0), 13.0)
    assert isinstance(serve.message, Serve)
    assert scale.coming == {"i-a"}
    scale.on_instance(happened("serving", "a", 13.5), 13.5)
    assert acknowledge(scale, [serve]) == []
    assert (scale.state, scale.record().outcome, scale.coming) == ("done", "1 new instances serve", frozenset())
    scale.on_instance(happened("first_token", "a", 14.0), 14.0)
    assert phases(scale) == [
        ("decided", None, 10.0),
        ("planned", None, 10.5),
        ("commanded", None, 11.0),
        ("first_byte", "a", 12.0),
        ("whole", "a", 13.0),
        ("serving", "a", 13.5),
        ("first_token", "a", 14.0),
    ]


def test_the_record_says_whether_parameters_were_received_or_shared() -> None:
    scale = started(["a", "b"])
    scale.on_transfer(replace(transfer("a", "whole"), received_bytes=3_000_000), 12.0)
    scale.on_transfer(replace(transfer("b", "whole"), received_bytes=100_000, shared_bytes=2_900_000), 12.0)
    whole = {phase.node: phase.detail for phase in scale.record().phases if phase.name == "whole"}
    assert whole == {"a": "3.0 MB received", "b": "0.1 MB received, 2.9 MB shared"}


def test_that_is_said_also_where_a_report_was_sooner_than_the_event() -> None:
    scale = started(["a", "b"])
    scale.on_report(loading("a"), 12.0)
    scale.on_transfer(replace(transfer("a", "whole"), shared_bytes=3_000_000), 12.1)
    [whole] = [phase for phase in scale.record().phases if phase.name == "whole"]
    assert (whole.node, whole.at, whole.detail) == ("a", 12.0, "3.0 MB shared")


def test_once_ended_nothing_moves_it() -> None:
    scale = started(["a"])
    acknowledge(scale, scale.on_transfer(transfer("a", "whole"), 12.0))
    assert scale.take_change()
    assert scale.on_transfer(transfer("a", "failed"), 13.0) == []
    assert scale.on_lease(died("a"), 13.0) == []
    assert scale.on_report(serving("a"), 13.0) == []
    assert scale.on_instance(happened("serving", "other"), 13.0) == []
    assert not scale.take_change()
    assert scale.state == "done"
