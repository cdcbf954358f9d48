"""The command: a whole comparison of two systems, and what is refused before anything runs."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from livescale.load.bench.systems.command import systems
from livescale.load.bench.systems.make_scenarios import find_rate_scale, replay_all
from livescale.load.bench.systems.rows import Results
from livescale.load.bench.systems.settings import SystemsBenchSettings
from livescale.load.trace import Arrival, Trace, Window

ROWS = "".join(f"{0.1 * number:.1f},600,5\n" for number in range(20))


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_s,prompt,output\n{ROWS}")
    return path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(systems, words)


def test_two_systems_are_compared_on_a_trace(trace: Path) -> None:
    words = ("--trace", str(trace), "--window", "0+2", "--warm-up", "0.5", "--seeds", "1", "--workers", "2")
    few = ("--systems", "distserve-full,ideal", "--rate-scale", "1", "--jobs", "1")
    result = invoke(*words, *few)
    assert result.exit_code in (0, 1), result.output
    found = msgspec.json.decode(Path("livescale-systems.json").read_bytes(), type=Results)
    assert [(one.system, one.requests, one.faults) for one in found.systems] == [
        ("distserve-full", 15, 0),
        ("ideal", 15, 0),
    ]
    assert found.reference == "distserve-full"
    page = Path("livescale-systems.html").read_text()
    assert "trace.csv, window 0+2, 1.00 times its rate" in page
    again = invoke(*words, *few)
    assert "2 of 2 runs were kept from before" in again.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "--trace is missing"),
        (("--trace", "none.csv"), "--trace: none.csv: not a readable trace"),
        (("--trace", "trace.csv", "--systems", "ideel"), "--systems: unknown system 'ideel'; did you mean 'ideal'?"),
        (("--trace", "trace.csv", "--systems", ","), "--systems names none"),
        (("--trace", "trace.csv", "--window", "9"), "--window: '9' is not a window"),
        (("--trace", "trace.csv", "--window", "90+9"), "--window: no request of trace.csv in 90+9; it ends at 2 s"),
        (("--trace", "trace.csv", "--window", "0+2", "--warm-up", "2"), "--warm-up is 2 s, and the window has 2"),
        (("--trace", "trace.csv", "--workers", "32"), "--topology: workers is 32, and cluster-b has 16 GPUs"),
        (("--trace", "trace.csv", "--topology", "nowhere"), "--topology: "),
        (("--trace", "trace.csv", "--engine-profile", "abacus"), "engine-profile: there is no 'abacus'"),
        (("--trace", "trace.csv", "--report", "no/such/page.html"), "--report no/such/page.html"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(trace: Path, words: tuple[str, ...], why: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 1
    assert why in result.output
    assert not Path(".livescale").exists()


@pytest.mark.parametrize("count", ["0", "101", "many"])
def test_a_number_of_seeds_that_makes_no_sense_is_refused(trace: Path, count: str) -> None:
    result = invoke("--trace", str(trace), "--seeds", count)
    assert result.exit_code == 2
    assert "--seeds" in result.output


def seconds_of_prefill(trace: Trace) -> float:
    return sum(arrival.prompt_tokens for arrival in trace) * 0.161 / 2048  # a chunk of 2,048 tokens takes 161 ms


def test_by_default_prompts_take_half_of_what_distserve_full_prefills_whatever_lengths_follow_the_window() -> None:
    even = tuple(Arrival(0.1 * at, 300, 1) for at in range(100))
    longer = (*even[:50], *(replace(arrival, prompt_tokens=500) for arrival in even[50:]))
    cut = tuple(Arrival(float(at), 9000, 1) for at in range(100))  # the model's context is 4,096
    for trace, workers in ((even, 8), (even, 4), (longer, 8), (cut, 8)):
        part = Window(0.0, 5.0)
        scale = find_rate_scale(trace, part, 5.0, SystemsBenchSettings(workers=workers))
        busy = seconds_of_prefill(replay_all(trace, part, scale, 1)) / 5.0
        assert busy == pytest.approx(workers * 0.625 / 2, rel=0.05)


def test_a_window_is_filled_to_its_end_though_the_trace_has_too_few_lengths() -> None:
    trace = tuple(Arrival(float(at), 100 + at, 1) for at in range(10))
    lengths = [arrival.prompt_tokens - 100 for arrival in replay_all(trace, Window(6.0, 10.0), 3.0, seed=0)]
    assert lengths == [6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7]
    assert [arrival.at for arrival in replay_all(trace, Window(6.0), 1.0, seed=0)] == [0.0, 1.0, 2.0, 3.0]
