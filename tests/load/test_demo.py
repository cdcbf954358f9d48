"""The demo's course: following the bus, its own system, its outcome, and its command."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from livescale.load.demo.command import demo, find_checkpoint, make_outcome, print_outcome
from livescale.load.demo.plan import Capacity, DemoLoad
from livescale.load.demo.stage import Happened, describe_load, make_stack_settings, phase_name
from livescale.load.incidents import Incident
from livescale.load.records import Ask
from livescale.load.settings import DemoSettings
from livescale.load.story import Story
from livescale.load.trace import Arrival, Window
from livescale.load.watch import complete_story, watching
from livescale.shared.bus.contract import Context, Endpoint, ServiceInfo
from livescale.shared.messages.scaling import AskScales, ScaleRecords
from livescale.shared.runtime.clock import LoopClock
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import BLOCK, DECISION, HEARTBEAT, INSTANCE, PLAN, SCALES, TRANSFER
from tests.load import happenings
from tests.load.happenings import MODEL, START

LOAD = DemoLoad(tuple(Arrival(float(at), 100, 10) for at in range(60)), 60.0, Window(15.0, 35.0))


def test_watching_hears_every_kind_of_event_and_leaves_nothing_behind() -> None:
    story, notes = Story(MODEL), list[str]()

    async def watch() -> None:
        broker = LocalBroker()
        bus = broker.connect()
        async with watching(broker.connect(), story, LoopClock(START), notes.append):
            bus.publish(HEARTBEAT, happenings.report("worker-1", "loading"), service="worker", id="worker-1")
            bus.publish(DECISION, happenings.decision(20.0, 1, 2), model=MODEL)
            bus.publish(PLAN, happenings.scale(20.0, "worker-1", phases=happenings.PHASES), id="scale-worker-1")
            bus.publish(BLOCK, happenings.block(21.0, "worker-1", 12), worker="worker-1")
            bus.publish(TRANSFER, happenings.whole(21.0, "worker-1"), plan="scale-worker-1")
            bus.publish(INSTANCE, happenings.served(22.0, "worker-1", "serving"), instance="instance-of-worker-1")
            await bus.flush()
        await bus.close()

    run(watch())  # fails on tasks that are left
    (newcomer,) = story.newcomers(START)
    assert newcomer.blocks == [(START + 21.0, 12)]
    assert (newcomer.whole_at, newcomer.serving_at) == (START + 24.2, START + 24.3)
    assert story.workers["worker-1"].state == "loading"
    assert len(notes) == 3


def test_what_goes_wrong_while_watching_reaches_the_caller_as_it_is() -> None:
    async def watch() -> None:
        async with watching(LocalBroker().connect(), Story(MODEL), LoopClock(START), print):
            raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        run(watch())


def test_records_of_the_planner_complete_the_story() -> None:
    story = Story(MODEL)

    async def answer(question: AskScales, context: Context) -> ScaleRecords:
        assert question.model == MODEL
        return ScaleRecords(records=[happenings.scale(20.0, "worker-1")])

    async def complete() -> None:
        broker = LocalBroker()
        planner, bus = broker.connect(), broker.connect()
        await planner.serve(ServiceInfo("planner", "planner-0", "plans"), [Endpoint(SCALES, answer)])
        await complete_story(bus, story, MODEL, LoopClock(START))
        await bus.close()
        await planner.close()

    run(complete())
    assert [newcomer.worker for newcomer in story.newcomers(START)] == ["worker-1"]


def test_the_system_is_sized_for_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * 1000)
    small = make_stack_settings(DemoSettings(link_rate=5e6, workers=3, live="zigzag"), tmp_path)
    assert (small.port, small.workers, small.link_rate, small.dtype) == (0, 3, 5e6, "float32")
    assert small.live == "zigzag"
    assert small.enable_prefix_caching is False
    assert small.arena_bytes == 256 * 1024 * 1024
    with (tmp_path / "b.safetensors").open("wb") as file:
        file.truncate(400_000_000)
    assert (make_stack_settings(DemoSettings(), tmp_path).arena_bytes or 0) > 800_000_000


@pytest.mark.parametrize(("elapsed", "name"), [(0, "calm"), (14.9, "calm"), (15, "burst"), (35, "calm"), (70, "calm")])
def test_the_phase_follows_the_load(elapsed: float, name: str) -> None:
    assert phase_name(LOAD, elapsed) == name


def test_the_load_is_described_with_what_was_measured_and_chosen() -> None:
    line = describe_load(LOAD, Capacity(1000, 100))
    assert "1000 prompt tokens/s, 100 output tokens/s, 200 ms a request" in line
    assert "60 requests in 60 s, the burst from 15 to 35 s" in line


def test_the_outcome_has_three_periods_and_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    model = happenings.outcome()
    happened = Happened(
        load=LOAD,
        capacity=Capacity(1000, 100),
        asks=[Ask(0, 0.0, [1], 8)],
        records=list(model.records),
        story=model.story,
        start=START,
        end=START + 62,
        again=[],
        incidents=[Incident(START + 30.0, "stall", "the machine stood still for 2.1 s", 2.1)],
    )
    outcome = make_outcome(DemoSettings(seed=4), happened, model.verdict, model.hardware)
    assert [(each.name, each.start - START, each.end - START) for each in outcome.periods] == [
        ("before", 0, 15),
        ("burst", 15, 35),
        ("after", 35, 60),
    ]
    assert outcome.settings["seed"] == "4"
    assert outcome.settings["one worker"] == "1000 prompt tokens/s, 100 output tokens/s"
    assert "trace" not in outcome.settings
    print_outcome(Console(width=120), outcome)
    printed = capsys.readouterr().out
    for text in (
        "TTFT p50",
        "burst",
        "worker-1",
        "4.20 s",
        "4.80 s",
        "Machine: AMD EPYC",
        "+30.0 s  the machine stood still for 2.1 s",
        "Every stream was complete",
    ):
        assert text in printed
    print_outcome(Console(width=80), happenings.outcome(happenings.live_scale()))
    printed = capsys.readouterr().out
    assert "After its full load, as others do, it would not have begun before 4.20 s." in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80
    for text in ("1.00 s", "1.10 s", "4.20 s", "4.80 s", "worker-0: 2"):
        assert text in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "absent.csv"], "absent.csv: not a readable trace"),
        (["--window", "0:10"], "--window says how to replay a trace"),
        (["--length-scale", "0.5"], "--length-scale says how to replay a trace"),
        (["--duration", "0"], "--duration"),
        (["--report", "absent/report.html"], "--report absent/report.html: not a file in a directory that exists"),
        (["--dtype", "int8"], "--dtype"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(demo, arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_load_that_brought_no_instance_is_no_success() -> None:
    calm = happenings.outcome([(-1.0, happenings.report("worker-0", "serving"))])
    assert calm.verdict.good
    assert not calm.good
    assert "But no instance was scaled out" in calm.sentence()
    assert happenings.outcome().good


def test_a_demo_that_cannot_be_carried_out_ends_with_2_and_says_why(tmp_path: Path) -> None:
    result = CliRunner().invoke(demo, ["--model", str(tmp_path), "--report", str(tmp_path / "report.html")])
    assert result.exit_code == 2
    assert "config.json" in result.stderr


def test_a_given_checkpoint_is_taken_and_none_is_made() -> None:
    assert find_checkpoint(DemoSettings(model="/some/where"), Console()) == Path("/some/where")
