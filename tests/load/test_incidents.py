"""What befell a system while a load ran: found, told, and drawn."""

import asyncio
import os
import signal
import sys
import time

from msgspec.structs import replace

from livescale.load.incidents import TICK_SECONDS, Incident, Life, Lives, Ticks, Times
from livescale.load.newcomers import tell_slower
from livescale.load.pictures import draw_pictures
from livescale.load.report import render_report
from livescale.load.story import Newcomer
from livescale.load.watch import describe
from livescale.load.watchman import watching_lives
from livescale.services.supervisor.processes import ProcessCommand, Supervisor
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.runtime.clock import SystemClock
from tests.load import happenings
from tests.load.happenings import START


def test_a_tick_that_comes_late_is_a_stall_by_either_clock() -> None:
    ticks = Ticks(Times(10.0, 1_000.0))
    assert ticks.on_tick(Times(10.1, 1_000.1)) is None
    assert ticks.on_tick(Times(10.5, 1_000.5)) is None  # busy, and no more
    stall = ticks.on_tick(Times(12.7, 1_002.7))
    assert stall is not None
    assert (stall.at, stall.what, stall.line) == (1_002.7, "stall", "the machine stood still for 2.1 s")
    halted = ticks.on_tick(Times(12.8, 1_005.9))
    assert halted is not None
    assert halted.line == "the machine stood still for 3.1 s"


def test_deaths_and_restarts_are_found_however_fast_they_come() -> None:
    lives = Lives({"router-0": Life(10, 1), "worker-0": Life(11, 1)})
    assert lives.on_look({"router-0": Life(10, 1), "worker-0": Life(11, 1)}, 1.0) == []
    dead = lives.on_look({"router-0": Life(10, 1), "worker-0": Life(None, 1)}, 2.0)
    assert dead == [Incident(2.0, "death", "worker-0 died")]
    back = lives.on_look({"router-0": Life(20, 2), "worker-0": Life(12, 2)}, 3.0)
    assert [each.line for each in back] == ["router-0 died", "router-0 was started again", "worker-0 was started again"]


async def test_a_killed_process_and_a_stall_of_ones_own_are_noted_as_they_happen() -> None:
    notes: list[str] = []
    sleeper = ProcessCommand("sleeper", (sys.executable, "-c", "import time; time.sleep(60)"))
    async with Supervisor(lambda name, line: None) as supervisor:
        supervisor.start(sleeper)
        while (pid := supervisor.children["sleeper"].pid) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with watching_lives(supervisor.children, SystemClock(), notes.append) as incidents:
            await asyncio.sleep(2 * TICK_SECONDS)
            time.sleep(0.8)  # noqa: ASYNC251
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(10):
                while "sleeper was started again" not in notes:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
    # A busy machine may have stood still more often.
    assert incidents[0].what == "stall"
    assert notes[0].startswith("the machine stood still for ")
    assert [each.line for each in incidents if each.what != "stall"] == ["sleeper died", "sleeper was started again"]


def test_who_counts_as_dead_is_told_and_kept() -> None:
    story = happenings.told([])
    dead = LeaseChanged(service="worker", id="worker-1", epoch=3, state="dead", reason="silent for 2.5 s", at=START)
    story.on_message(dead, START)
    story.on_message(replace(dead, state="suspect"), START)
    assert story.deaths == [dead]
    assert describe(dead) == "worker-1 counts as dead: silent for 2.5 s"


def test_the_report_says_that_live_was_slower() -> None:
    slow = [event for event in happenings.live_scale() if event[0] != 21.5]  # nothing is handed over
    page = render_report(replace(happenings.outcome(slow), prefill_seconds=0.1))
    assert "worker-1: live was slower than a stop would have been: its first token came 4.80 s after the" in page


def test_incidents_are_on_the_time_axis_of_the_report_and_in_a_list() -> None:
    befell = [Incident(START + 30, "stall", "the machine stood still for 2.1 s", 2.1), Incident(START, "death", "<w>")]
    quiet, outcome = happenings.outcome(), replace(happenings.outcome(), incidents=befell)
    assert "<dt>+30.0 s</dt><dd>the machine stood still for 2.1 s</dd>" in render_report(outcome)
    assert "&lt;w&gt;" in render_report(outcome)
    changed = [a.title for a, b in zip(draw_pictures(quiet), draw_pictures(outcome), strict=True) if a.svg != b.svg]
    assert changed == ["Requests", "Instances", "Queue", "Time to first token", "Time between tokens"]


def newcomer(**others: object) -> Newcomer:
    """Live, whole at 24.2 s as predicted; its own first token comes at 26 s."""
    [made] = happenings.outcome(happenings.live_scale()).newcomers()
    return replace(made, **{"predicted_at": START + 24.0, "first_token_at": START + 26.0, "hand_offs": [], **others})


def test_where_live_was_slower_than_a_stop_the_report_says_why() -> None:
    records = happenings.outcome().records
    [line] = tell_slower([newcomer()], records, 0.2)
    assert "its first token came 6.00 s after the decision, and would have after 4.20 s" in line
    assert "as nobody took a request over from it before it was whole" in line
    [line] = tell_slower([newcomer(predicted_at=START + 22.0)], records, 0.2)
    assert "its parameters took 4.20 s where 2.00 s were predicted" in line
    stall = Incident(START + 23.0, "stall", "the machine stood still for 1.9 s", 1.9)
    [line] = tell_slower([newcomer()], records, 0.2, [stall])
    assert "as the machine stood still for 1.9 s; nobody" in line


def test_where_live_was_no_slower_or_there_was_none_nothing_is_said() -> None:
    records = happenings.outcome().records
    for faster in (newcomer(first_token_at=START + 24.1), newcomer(live_at=None), newcomer(first_token_at=None)):
        assert list(tell_slower([faster], records, 0.2)) == []
    assert list(tell_slower([newcomer()], records, 3.0)) == []
