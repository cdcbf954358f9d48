"""`livescale advise` on a tiny trace: what it finds holds, and with less it breaks."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from livescale.services.cli.main import cli

# Two requests a second, and for two seconds thirty: too many for one instance.
TIMES = [*(number / 2 for number in range(8)), *(4 + number / 30 for number in range(60)), 6.5, 7.0, 7.5]
NEEDED = ("--topology", "lambdascale-1", "--ttft-slo", "0.8", "--tbt-slo", "0.1", "--window", "0+8")


def advise(tmp_path: Path, *options: str, models: str = "chat=8b") -> Result:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{at:09.6f},800,6" for at in TIMES]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    told = ("advise", "--trace", str(trace), "--models", models, *NEEDED, *options)
    return CliRunner().invoke(cli, told, env={"COLUMNS": "200"})


def test_the_smallest_pool_holds_and_one_gpu_less_breaks(tmp_path: Path) -> None:
    report = tmp_path / "advice.html"
    result = advise(tmp_path, "--report", str(report))
    assert result.exit_code == 0, result.output
    assert "A pool of 2 holds the SLOs for 99 % of requests" in result.stdout
    rows = {line.split("  ")[0].strip(): line for line in result.stdout.splitlines()}
    assert "breaks: TTFT, first at 4." in rows["one GPU less"]
    assert "holds" in rows["a pool of 12, min-instances 12"]
    assert "breaks: TTFT" in rows["twice the bursts"]
    assert "a pool of 12, min-instances 12: 100.00 % in time, holds" in result.stderr  # as it goes
    page = report.read_text()
    assert "A pool of 2 holds the SLOs" in page
    assert page.count("<svg") >= 5


def test_the_exit_status_says_that_no_pool_holds(tmp_path: Path) -> None:
    result = advise(tmp_path, "--ttft-slo", "0.001")
    assert result.exit_code == 1
    assert "No pool holds: with 12 workers" in result.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--topology", "nowhere"), "--topology: "),
        (("--window", "5:"), "--window: '5:' has no end"),
        (("--window", "5:2"), "--window: '5:2' is an empty window"),
        (("--ttft-slo", "0"), "--ttft-slo"),
        (("--share", "1.5"), "--share"),
        (("--engine-profile", "nothing"), "nothing"),
        (("--tensor-parallel-size", "64"), "--topology: it has 12 GPUs"),
        (("--models", "code=7b"), "1 --trace for 2 --models"),
        (("--trace", "gone.csv", "--models", "code=7b"), "--trace: gone.csv"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    result = advise(tmp_path, *options)
    assert result.exit_code == 2, result.output
    assert told in result.output


@pytest.mark.parametrize(("models", "told"), [("chat", "write NAME=SIZE"), ("chat=gone", "neither a directory")])
def test_a_model_that_cannot_be_is_named(tmp_path: Path, models: str, told: str) -> None:
    result = advise(tmp_path, models=models)
    assert result.exit_code == 2
    assert told in result.output
