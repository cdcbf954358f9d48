"""Calibration, watching and the screen, each with what it really talks to or prints."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from livescale.load.client import Client, open_session
from livescale.load.demo.calibrate import CalibrationFailed, calibrate, rate_apart, rate_together
from livescale.load.screen import LiveScreen, PlainScreen, open_screen
from livescale.load.story import Story
from livescale.load.tally import Tally
from livescale.load.target import learn_target
from livescale.load.view import View, render_line, render_screen
from livescale.load.watch import describe
from livescale.shared.messages.membership import Holding
from livescale.shared.runtime.clock import SystemClock
from tests.load import happenings
from tests.load.happenings import MODEL, START
from tests.load.scripted_server import ScriptedServer


async def test_calibration_measures_prefill_alone_and_decode_together() -> None:
    server = ScriptedServer(token_seconds=0.02)
    async with server.serving() as url, open_session(url, "", 10) as session:
        target = await learn_target(session, None)
        capacity = await calibrate(Client(session, "tiny", SystemClock(), Tally()), target)
    # 32 prompt tokens (half the context) in 20 ms; eight streams with a token each 20 ms.
    assert capacity.prefill_rate == pytest.approx(32 / 0.02, rel=0.5)
    assert capacity.decode_rate == pytest.approx(8 / 0.02, rel=0.5)


async def test_calibration_says_what_failed() -> None:
    async with ScriptedServer(["refuse"]).serving() as url, open_session(url, "", 10) as session:
        target = await learn_target(session, None)
        with pytest.raises(CalibrationFailed, match="failed: HTTP 429: the queue is full"):
            await calibrate(Client(session, "tiny", SystemClock(), Tally()), target)


def test_streams_that_did_not_run_together_tell_at_least_a_rate() -> None:
    first, second = happenings.record(0, 0.0), happenings.record(1, 10.0)
    assert rate_together([first, second]) is None
    seconds = second.token_at[-1] - first.sent
    assert rate_apart([first, second]) == pytest.approx((len(first.token_at) + len(second.token_at)) / seconds)


async def test_calibration_goes_on_where_every_token_of_an_answer_comes_at_once() -> None:
    server = ScriptedServer(token_seconds=0.0)
    async with server.serving() as url, open_session(url, "", 10) as session:
        target = await learn_target(session, None)
        capacity = await calibrate(Client(session, "tiny", SystemClock(), Tally()), target)
    assert capacity.decode_rate > 0


def view(at: float) -> View:
    story = Story(MODEL)
    for when, message in happenings.scale_out_and_in():
        if when <= at:
            story.on_message(message, START + when)
    for worker in ("worker-0", "worker-1"):
        story.on_message(story.workers[worker], START + at)  # they speak twice a second
    tally = Tally()
    for _ in range(3):
        tally.on_sent()
        tally.on_token(START + at - 1, 0.25, first=True)
        tally.on_token(START + at - 1, 0.02, first=False)
    return View("burst", at, 60.0, 10, START + at, story, tally)


def test_the_line_tells_states_progress_and_latency() -> None:
    line = render_line(view(22.0))
    assert "22.0 s of 60 burst" in line
    assert "worker-0 serving, worker-1 loading 5/12" in line
    assert "sent 3/10, running 3, queued ?, failed 0; TTFT 250 ms, TBT 20 ms" in line
    assert "queued 3" in render_line(view(31.0))


def test_the_picture_shows_blocks_and_decisions() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(render_screen(view(22.0)))
    text = console.export_text()
    assert "loading" in text
    assert "5/12 blocks" in text
    assert "-2 s  1 -> 2: queued prefill work asks for 2 instances" in text


def test_while_a_worker_is_live_it_is_shown_who_runs_which_layers() -> None:
    moment = view(22.0)
    told = {"live_layers": 4, "live_waiting": 3, "handed_over": {"worker-0": 6, "worker-2": 1}}
    holding = Holding(model=MODEL, version="v1", ready=[0, 1, 2, 3, 4], total=12)
    live = replace(happenings.report("worker-1", "live"), holding=holding, **told)
    helper = replace(happenings.report("worker-0", "serving"), helping=["worker-1"])
    for report in (live, helper):
        moment.story.on_message(report, moment.now)
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(render_screen(moment))
    [helping, running] = [line.rstrip() for line in console.export_text().splitlines() if line.startswith("worker-")]
    assert helping.endswith("runs the rest for worker-1")
    assert "5/12 blocks" in running
    assert running.endswith("runs layers 1-4 of 10, 3 wait, 7 handed over")
    line = render_line(moment)
    assert "worker-0 serving (runs the rest for worker-1)" in line
    assert "worker-1 live 5/12 (runs layers 1-4 of 10, 3 wait, 7 handed over)" in line


def test_where_there_is_no_terminal_lines_come_every_five_seconds() -> None:
    written = io.StringIO()
    with open_screen(Console(file=written, width=80)) as screen:
        assert isinstance(screen, PlainScreen)
        screen.note("decision: [1] -> 2")
        for quarter in range(41):
            screen.show(view(20 + quarter / 4))
    lines = written.getvalue().splitlines()
    assert lines[0] == "decision: [1] -> 2"
    assert [line.split(" s")[0].strip() for line in lines[1:]] == ["20.0", "25.0", "30.0"]


def test_on_a_terminal_the_picture_is_live() -> None:
    written = io.StringIO()
    with open_screen(Console(file=written, width=80, force_terminal=True)) as screen:
        assert isinstance(screen, LiveScreen)
        screen.show(view(22.0))
        screen.note("worker-1: serves")
    assert "worker-1: serves" in written.getvalue()
    assert "5/12 blocks" in written.getvalue()


def test_events_that_people_want_to_read_have_a_line() -> None:
    lines = [line for _, message in happenings.scale_out_and_in() if (line := describe(message))]
    assert lines == [
        "decision: 1 -> 2 instances, because queued prefill work asks for 2 instances",
        "worker-1: parameters whole (nothing)",
        "worker-1: serves",
        "worker-1: first token",
        "decision: 2 -> 1 instances, because queued prefill work asks for 1 instances",
    ]
