import pytest
from msgspec.structs import replace
from rich.console import Console

from livescale.load.chaos.client import CutStream
from livescale.load.chaos.faults import SeenFault
from livescale.load.chaos.report import count_wrong, fault_table
from livescale.load.chaos.schedule import Fault
from livescale.load.story import Story
from tests.load.chaos.runs import dead, judged, killed, page, ran, record


def test_a_stream_that_equals_the_undisturbed_one_is_good() -> None:
    report = judged(ran(record()))
    assert report.good
    assert (report.longest_pause, report.longest_first, report.tokens) == (2.0, 1.0, 3)
    assert "nothing was wrong or lost" in report.sentence()


@pytest.mark.parametrize(
    ("tokens", "wrong", "lost"), [((1, 9, 3), 1, 0), ((1, 2), 0, 1), ((1, 2, 2, 3), 2, 0), ((), 0, 3)]
)
def test_wrong_lost_and_repeated_tokens_are_counted(tokens: tuple[int, ...], wrong: int, lost: int) -> None:
    report = judged(ran(record(tokens=tokens)))
    assert not report.good
    assert (report.wrong_tokens, report.lost_tokens) == (wrong, lost)


def test_a_request_without_a_record_is_incomplete() -> None:
    report = judged(ran(record()), {0: [1, 2, 3], 1: [4]})
    assert (report.incomplete, report.lost_tokens, report.good) == (["request 1: no record of it"], 1, False)


def test_tokens_beyond_the_end_are_wrong() -> None:
    assert count_wrong([1, 2, 3, 4], [1, 2]) == 2


def test_a_request_keeps_its_clock_when_its_gateway_dies() -> None:
    # Two tokens by 3 s at a gateway that dies; the same two and the third at another, by 13 s.
    cut = CutStream("gateway-1", record(tokens=(1, 2)))
    run = ran(
        replace(record(due=0.0), sent=10.0, ended=13.0, token_at=[11.0, 12.0, 13.0]),
        cuts=(cut,),
        faults=(killed("gateway-1", 3.0),),
    )
    report = judged(run)
    assert (report.longest_pause, report.longest_unbroken, report.longest_first) == (10.0, 0.0, 1.0)
    early = replace(cut.record, token_ids=[], token_at=[])
    assert judged(replace(run, cuts=[CutStream("gateway-1", early)])).longest_first == 11.0
    assert ">10.00 s</td>" in page(run)


def test_the_pause_of_streams_that_were_not_cut_is_told_apart() -> None:
    began_anew = replace(record(due=0.0), sent=10.0, ended=13.0, token_at=[11.0, 12.0, 13.0])
    cut = CutStream("gateway-1", record(tokens=(1, 2)))
    run = ran(began_anew, record(index=1), cuts=(cut,), faults=(killed("gateway-1", 3.0),))
    report = judged(run, {0: [1, 2, 3], 1: [1, 2, 3]})
    assert (report.longest_pause, report.longest_unbroken) == (10.0, 2.0)
    assert "longest pause 10.00 s, 2.00 s of streams that were not cut" in report.sentence()


def test_stalls_are_counted_and_told() -> None:
    stalls = tuple(SeenFault(Fault(at, "stall", "", 2.5), at, "") for at in (1.0, 20.0))
    report = judged(ran(record(), faults=stalls))
    assert report.faults == {"stall": 2}
    assert report.stalled == 5.0
    assert "everything stood still for 5.00 s in all" in report.sentence()
    assert "freeze everything for 2.5 s" in page(ran(record(), faults=stalls))


def test_a_connection_lost_with_its_killed_gateway_counts_apart() -> None:
    cut = CutStream("gateway-1", record(tokens=(1, 2)))
    report = judged(ran(record(due=10.0), cuts=(cut,), faults=(killed("gateway-1", 2.5),)))
    assert report.good
    assert (report.cut, report.streams, report.lost_tokens) == (1, 1, 0)
    assert report.faults == {"kill gateway": 1}


def test_what_came_before_a_connection_was_lost_has_to_be_right() -> None:
    cut = CutStream("gateway-1", record(tokens=(1, 9)))
    report = judged(ran(record(due=10.0), cuts=(cut,), faults=(killed("gateway-1", 2.5),)))
    assert (report.wrong_tokens, report.good) == (1, False)


@pytest.mark.parametrize("fault", [killed("gateway-0", 2.5), killed("gateway-1", 30.0)])
def test_a_connection_that_broke_without_its_gateway_s_death_is_a_fault(fault: SeenFault) -> None:
    report = judged(ran(record(due=10.0), cuts=(CutStream("gateway-1", record(tokens=(1, 2))),), faults=(fault,)))
    assert not report.good
    assert "nobody had killed gateway-1" in report.incomplete[0]


def test_a_system_that_is_not_whole_or_leaves_something_is_not_good() -> None:
    assert judged(ran(record(), not_whole=("worker-1 is loading",))).complaints() == [
        "not whole in the end: worker-1 is loading"
    ]
    assert not judged(ran(record(), left=("process 7",))).good


def test_a_fault_s_row_has_the_longest_pause_until_the_next_fault() -> None:
    faults = (
        killed("worker-0", 1.5),
        SeenFault(Fault(1.8, "scale", "", instances=2), 1.8, "1 -> 2"),
        SeenFault(Fault(50.0, "freeze", "router-0", seconds=2.0), 50.0, "", "router-0"),
    )
    story = Story("m")
    story.on_message(dead("worker-0", 1.75), 1.75)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(fault_table(ran(record(), faults=faults, story=story)))
    rows = [line.split() for line in captured.get().splitlines()[-3:]]
    assert rows[0] == ["1.50", "s", "kill", "worker-0", "1", "1.00", "s", "250", "ms"]
    assert rows[1] == ["1.80", "s", "scale", "to", "2:", "1", "->", "2", "1", "2.00", "s"]
    assert rows[2] == ["50.00", "s", "freeze", "router-0", "for", "2.0", "s", "0", "0", "ms"]
