"""Claims that were made up, and a workbench for those that simulate nothing."""

from pathlib import Path

from livescale.load.bench.systems.runs import KeptRuns
from livescale.load.claims.claim import Band, Bound, Claim, Measured, one
from livescale.load.claims.workbench import Mode, Workbench


def workbench(path: Path, mode: Mode = Mode.QUICK, traces: Path | None = None) -> Workbench:
    return Workbench(mode=mode, kept=KeptRuns(path), traces=traces, jobs=1, tell=lambda line: None)


def made_up(
    bound: Bound | None = None, measured: Measured | None = None, *, calibrated: str = "", stand_in: str = ""
) -> Claim:
    """A claim of 1 that holds by default."""
    return Claim(
        id="made-up",
        source="Nobody 1",
        says="It is 1.",
        setting="nowhere",
        bound=bound or Band("1", 0.9, 1.1, "s"),
        measure=lambda bench: measured or one(1.0),
        calibrated=calibrated,
        stand_in=stand_in,
    )
