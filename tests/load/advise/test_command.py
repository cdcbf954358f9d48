"""`livescale advise` on a tiny trace: what it finds holds, and with less it breaks."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from livescale.services.cli.main import cli
from livescale.shared.topology.file import SHIPPED

# Two requests a second, and for two seconds thirty: too many for one instance.
TIMES = [*(number / 2 for number in range(8)), *(4 + number / 30 for number in range(60)), 6.5, 7.0, 7.5]
NEEDED = ("--ttft-slo", "0.8", "--tbt-slo", "0.1", "--window", "0+8")
GPUS = 4


def advise(tmp_path: Path, *options: str, models: str = "chat=8b") -> Result:
    """Advice of a cluster of some of LambdaScale's nodes: each of the many simulations takes as long as it has."""
    trace, topology = tmp_path / "trace.csv", tmp_path / "few-nodes.yaml"
    topology.write_text((SHIPPED / "lambdascale-1.yaml").read_text().replace("count: 12", f"count: {GPUS}"))
    rows = [f"2023-11-16 18:15:{at:09.6f},800,6" for at in TIMES]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    told = ("advise", "--trace", str(trace), "--models", models, "--topology", str(topology), *NEEDED, *options)
    return CliRunner().invoke(cli, told, env={"COLUMNS": "200"})


def test_the_smallest_pool_holds_and_one_gpu_less_breaks(tmp_path: Path) -> None:
    report = tmp_path / "advice.html"
    result = advise(tmp_path, "--report", str(report))
    assert result.exit_code == 0, result.output
    assert "A pool of 2 meets the SLOs for 99 % of requests" in result.stdout
    rows = {line.split("  ")[0].strip(): line for line in result.stdout.splitlines()}
    assert "breaks: TTFT, first at 4." in rows["one GPU less"]
    assert "holds" in rows[f"a pool of {GPUS}, min-instances {GPUS}"]
    assert "breaks: TTFT" in rows["twice the bursts"]
    assert f"a pool of {GPUS}, min-instances {GPUS}: 100.00 % in time, holds" in result.stderr  # as it goes
    page = report.read_text()
    assert "A pool of 2 meets the SLOs" in page
    assert page.count("<svg") >= 5


def test_the_exit_status_says_that_no_pool_holds(tmp_path: Path) -> None:
    result = advise(tmp_path, "--ttft-slo", "0.001")
    assert result.exit_code == 1
    assert f"No pool meets the SLOs: with {GPUS} workers" in result.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--topology", "nowhere"), "--topology: "),
        (("--window", "5:"), "--window: '5:' has no end"),
        (("--window", "5:2"), "--window: '5:2' is an empty window"),
        (("--ttft-slo", "0"), "--ttft-slo"),
        (("--share", "1.5"), "--share"),
        (("--engine-profile", "nothing"), "nothing"),
        (("--tensor-parallel-size", "64"), f"--topology: it has {GPUS} GPUs"),
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
