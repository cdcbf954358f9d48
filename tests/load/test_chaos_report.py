"""Chaos: what counts as right, as whole, and as left behind; and how it is told."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from livescale.load.chaos.client import Cut
from livescale.load.chaos.faults import Happening, find_victim
from livescale.load.chaos.log_events import HANDED_OVER, RESUMED, TOOK_OFFICE, LogEvents
from livescale.load.chaos.page import render_report
from livescale.load.chaos.report import ChaosReport, count_wrong, fault_table, make_report
from livescale.load.chaos.run import Run
from livescale.load.chaos.schedule import LOADING, SOURCE, Fault
from livescale.load.chaos.whole import find_amiss, find_left, shared_memory
from livescale.load.records import RequestRecord
from livescale.load.story import QueuePoint, Story
from livescale.shared.messages.membership import EngineLoad, Member, ServiceName, WorkerReport, WorkerState
from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot
from tests.load import happenings

QUIET = QueuePoint(at=1.0, waiting=0, running=0)
PROCESSES = ["worker-0", "worker-1", "gateway-0"]


def record(index: int = 0, tokens: tuple[int, ...] = (1, 2, 3), *, due: float = 0.0, asked: int = 3) -> RequestRecord:
    """A token a second from `due` on, but two seconds before the last."""
    at = [due + 1.0 + place for place in range(len(tokens))]
    at[-1:] = [at[-1] + 1.0] if at else []
    return RequestRecord(
        index=index,
        due=due,
        sent=due,
        ended=at[-1] if at else due,
        prompt_tokens=1,
        asked_tokens=asked,
        status=200,
        finish_reason="length",
        token_ids=list(tokens),
        token_at=at,
    )


def ran(
    *records: RequestRecord,
    cuts: tuple[Cut, ...] = (),
    faults: tuple[Happening, ...] = (),
    story: Story | None = None,
    not_whole: tuple[str, ...] = (),
    left: tuple[str, ...] = (),
) -> Run:
    return Run(
        asks=[],
        records=list(records),
        cuts=list(cuts),
        happenings=list(faults),
        story=story or Story("m"),
        start=0.0,
        end=60.0,
        refused=0,
        resumed=2,
        takeovers=1,
        handed_over=0,
        not_whole=list(not_whole),
        left=list(left),
    )


def judged(run: Run, right: dict[int, list[int]] | None = None) -> ChaosReport:
    return make_report(run, right or {0: [1, 2, 3]}, seed=1, dtype="float32")


def page(run: Run) -> str:
    return render_report(judged(run), run, {"gateways": "2", "seed": "1"})


def killed(victim: str, at: float) -> Happening:
    return Happening(Fault(at, "kill", victim), at, "", victim)


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
    cut = Cut("gateway-1", record(tokens=(1, 2)))
    run = ran(
        replace(record(due=0.0), sent=10.0, ended=13.0, token_at=[11.0, 12.0, 13.0]),
        cuts=(cut,),
        faults=(killed("gateway-1", 3.0),),
    )
    report = judged(run)
    assert (report.longest_pause, report.longest_first) == (10.0, 1.0)
    early = replace(cut.record, token_ids=[], token_at=[])
    assert judged(replace(run, cuts=[Cut("gateway-1", early)])).longest_first == 11.0
    assert ">10.00 s</td>" in page(run)


def test_stalls_are_counted_and_told() -> None:
    stalls = tuple(Happening(Fault(at, "stall", "", 2.5), at, "") for at in (1.0, 20.0))
    report = judged(ran(record(), faults=stalls))
    assert report.faults == {"stall": 2}
    assert report.stalled == 5.0
    assert "everything stood still for 5.00 s in all" in report.sentence()
    assert "freeze everything for 2.5 s" in page(ran(record(), faults=stalls))


def test_a_connection_lost_with_its_killed_gateway_counts_apart() -> None:
    cut = Cut("gateway-1", record(tokens=(1, 2)))
    report = judged(ran(record(due=10.0), cuts=(cut,), faults=(killed("gateway-1", 2.5),)))
    assert report.good
    assert (report.cut, report.streams, report.lost_tokens) == (1, 1, 0)
    assert report.faults == {"kill gateway": 1}


def test_what_came_before_a_connection_was_lost_has_to_be_right() -> None:
    cut = Cut("gateway-1", record(tokens=(1, 9)))
    report = judged(ran(record(due=10.0), cuts=(cut,), faults=(killed("gateway-1", 2.5),)))
    assert (report.wrong_tokens, report.good) == (1, False)


@pytest.mark.parametrize("fault", [killed("gateway-0", 2.5), killed("gateway-1", 30.0)])
def test_a_connection_that_broke_without_its_gateway_s_death_is_a_fault(fault: Happening) -> None:
    report = judged(ran(record(due=10.0), cuts=(Cut("gateway-1", record(tokens=(1, 2))),), faults=(fault,)))
    assert not report.good
    assert "nobody had killed gateway-1" in report.incomplete[0]


def test_a_system_that_is_not_whole_or_leaves_something_is_not_good() -> None:
    assert judged(ran(record(), not_whole=("worker-1 is loading",))).complaints() == [
        "not whole in the end: worker-1 is loading"
    ]
    assert not judged(ran(record(), left=("process 7",))).good


def test_a_fault_s_row_has_the_longest_pause_until_the_next_fault() -> None:
    faults = [
        killed("worker-0", 1.5),
        Happening(Fault(1.8, "scale", "", instances=2), 1.8, "1 -> 2"),
        Happening(Fault(50.0, "freeze", "router-0", seconds=2.0), 50.0, "", "router-0"),
    ]
    console = Console(width=100)
    with console.capture() as captured:
        console.print(fault_table(faults, [record()], 0.0, 60.0))
    rows = [line.split() for line in captured.get().splitlines()[-3:]]
    assert rows[0] == ["1.50", "s", "kill", "worker-0", "1", "1.00", "s"]
    assert rows[1] == ["1.80", "s", "scale", "to", "2:", "1", "->", "2", "1", "2.00", "s"]
    assert rows[2] == ["50.00", "s", "freeze", "router-0", "for", "2.0", "s", "0", "0", "ms"]


def test_a_part_in_a_scale_is_had_by_who_loads_or_sends_and_may_be_hit() -> None:
    story = Story(happenings.MODEL)
    story.on_message(happenings.report("worker-1", "loading"), 1.0)
    running = happenings.scale(1.0, "worker-1")
    assert find_victim(LOADING, story, ["worker-0", "worker-1"]) == "worker-1"
    assert find_victim(LOADING, story, ["worker-0"]) is None
    story.on_message(running, 1.0)
    assert find_victim(SOURCE, story, ["worker-0"]) is None  # it is done
    story.on_message(type(running)(id="s", decision=running.decision, state="loading", plan=running.plan), 1.0)
    assert find_victim(SOURCE, story, ["worker-0"]) == "worker-0"
    assert find_victim("nats", story, ["nats"]) == "nats"


def test_events_are_counted_as_lines_pass() -> None:
    lines: list[tuple[str, str]] = []
    events = LogEvents(lambda name, line: lines.append((name, line)))
    events.echo("gateway-0", "2026 [warning  ] request_lost   attempt=1 reason=dead")
    events.echo("router-1", "2026 [info  ] router_takes_office   epoch=7")
    events.echo("router-1", "2026 [info  ] something_else")
    events.echo("worker-1", "2026 [info  ] request_taken   layers=2 of=worker-0")
    assert len(lines) == 4
    assert events.counts == {RESUMED: 1, TOOK_OFFICE: 1, HANDED_OVER: 1}


def worker(id: str, state: WorkerState = "serving", *, requests: int = 0, blocks: int = 0) -> WorkerReport:
    load = EngineLoad(
        waiting_requests=0,
        waiting_tokens=0,
        running_requests=requests,
        max_requests=4,
        kv_blocks_used=blocks,
        kv_blocks_total=9,
        kv_block_tokens=16,
    )
    return WorkerReport(id=id, epoch=1, state=state, model="m", instance="i", load=load)


def member(id: str) -> Member:
    service: ServiceName = "gateway" if id.startswith("gateway") else "worker"
    return Member(service=service, id=id, pid=1, host="h", epoch=1, lease="alive")


def snapshot(*workers: WorkerReport, members: list[str] | None = None) -> Snapshot:
    entry = ModelEntry(spec=ModelSpec(name="m", path="/m", dtype="float32", min_instances=1), state="ready")
    return Snapshot(
        members=[member(id) for id in (PROCESSES if members is None else members)], workers=[*workers], models=[entry]
    )


def test_a_system_at_rest_with_everybody_there_is_whole() -> None:
    assert find_amiss(snapshot(worker("worker-0"), worker("worker-1", "spare")), QUIET, PROCESSES) == []


@pytest.mark.parametrize(
    ("state", "queue", "said"),
    [
        (snapshot(worker("worker-0"), worker("worker-1", "loading")), QUIET, "worker-1 is loading"),
        (snapshot(worker("worker-0")), QUIET, "worker-1 does not report"),
        (snapshot(worker("worker-0"), worker("worker-1"), members=PROCESSES[:2]), QUIET, "gateway-0 is not a member"),
        (snapshot(worker("worker-0"), worker("worker-1", requests=2)), QUIET, "worker-1 has 2 requests"),
        (
            snapshot(worker("worker-0"), worker("worker-1", blocks=3)),
            QUIET,
            "worker-1 holds 3 blocks of its KV cache",
        ),
        (snapshot(worker("worker-0", "spare"), worker("worker-1", "spare")), QUIET, "model m (0 of 1 instances)"),
        (snapshot(worker("worker-0"), worker("worker-1")), None, "no router tells its queue"),
        (
            snapshot(worker("worker-0"), worker("worker-1")),
            QueuePoint(1.0, 0, 2),
            "the router counts 2 requests running",
        ),
    ],
)
def test_what_is_amiss_is_named(state: Snapshot, queue: QueuePoint | None, said: str) -> None:
    assert find_amiss(state, queue, PROCESSES) == [said]


def test_what_is_left_of_a_system_is_found() -> None:
    before = shared_memory()
    name = f"livescale-test-{os.getpid()}"
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process,
        tempfile.TemporaryDirectory(prefix=f"livescale-{os.getpid()}-") as directory,
    ):
        Path("/dev/shm", name).touch()
        try:
            left = find_left([process.pid], before)
        finally:
            Path("/dev/shm", name).unlink()
        assert process.stdin is not None
        process.stdin.write(b"\n")
    assert {f"process {process.pid}", f"directory {directory}", f"shared memory {name}"} <= set(left)
    assert not [line for line in find_left([process.pid], before) if str(os.getpid()) in line or "process" in line]


def test_the_page_shows_the_faults_and_what_clients_noticed() -> None:
    faults = (killed("worker-0", 1.5), Happening(Fault(4.0, "freeze", SOURCE, seconds=2.0), 4.0, "<b>", "worker-1"))
    run = ran(record(), faults=faults, story=happenings.told(happenings.scale_out_and_in()), left=("process 7",))
    told = page(run)
    assert "left behind: process 7" in told
    assert "&lt;b&gt;" in told
    assert told.count("<svg") == 3
    assert "first token, shared" in told
    assert "worker-0</text>" in told or "worker-0" in told
    assert not re.search(r'(?:src|href)="(?!#)', told)
