"""The command `livescale claims`: what the papers say, checked here, as one table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from livescale.load.bench.systems.runs import KeptRuns
from livescale.load.claims.claim import Claim, Judgement, Verdict
from livescale.load.claims.every import CLAIMS
from livescale.load.claims.page import write_page
from livescale.load.claims.run import check, outdated, reviewed_causes, unreviewed
from livescale.load.claims.table import HEADINGS, cells, render_markdown, row_of, tell_counts
from livescale.load.claims.workbench import Mode, Workbench
from livescale.load.report import check_report_path, save_page
from livescale.load.stats import new_table
from livescale.services.cli.tables import open_console

FILE = click.Path(path_type=Path, dir_okay=False)

EPILOG = """
\b
Examples:
  livescale claims --quick
  livescale claims --traces traces/ --markdown claims.md
  livescale claims --only blitz-fig15-request-3,lambda-formula
"""


def to_claims(ctx: click.Context, param: click.Parameter, text: str | None) -> Sequence[Claim]:
    """The claims that are named, with commas between them; all by default."""
    if text is None:
        return CLAIMS
    known = {claim.id: claim for claim in CLAIMS}
    names = [name.strip() for name in text.split(",") if name.strip()]
    strange = [name for name in names if name not in known]
    if strange or not names:
        raise click.BadParameter(f"there is no claim {(strange or [text])[0]!r}; --list has their names", ctx, param)
    return [known[name] for name in names]


@click.command(epilog=EPILOG)
@click.option(
    "--quick", "mode", flag_value=Mode.QUICK, type=Mode, help="Check what takes minutes, and replay no traces."
)
@click.option(
    "--full",
    "mode",
    flag_value=Mode.FULL,
    type=Mode,
    help="Run three seeds and both windows of each trace; takes hours.",
)
@click.option("--only", "claims", callback=to_claims, help="Claims to check, with commas between their names.")
@click.option("--list", "as_list", is_flag=True, help="Check nothing, and print the names of all claims.")
@click.option(
    "--traces",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory with azure_code_2023.csv and azure_conv_2023.csv; without it claims about them are not run.",
)
@click.option(
    "--jobs",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Number of simulations at the same time; 0 is one for each CPU core.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".livescale/runs"),
    show_default=True,
    help="Directory that keeps every simulation; those of the same scenario and code are not run again.",
)
@click.option("--markdown", type=FILE, help="File to write the table to, as Markdown.")
@click.option("--json", "output", type=FILE, help="File to write the results to, as JSON.")
@click.option("--report", type=FILE, help="File to write the HTML report to.")
def claims(
    mode: Mode | None,
    claims: Sequence[Claim],
    as_list: bool,
    traces: Path | None,
    jobs: int,
    runs: Path,
    markdown: Path | None,
    output: Path | None,
    report: Path | None,
) -> None:
    """Check what the papers claim that this system follows, and print one table.

    Plans, schedules and policies are the real ones. Simulated systems are those of `livescale bench systems`. A claim
    for which a constant was fitted is calibrated, and does not count as holding. Without --quick and --full, it takes
    about ten minutes, with one seed and a part of one window of each trace.

    The exit status is 1 if a claim fails whose cause is not on the reviewed list.
    """
    if as_list:
        for claim in claims:
            click.echo(f"{claim.id:<24} {claim.source}: {claim.says}")
        return
    files = ClaimFiles(markdown=markdown, output=output, report=report)
    files.check()
    mode = mode or Mode.DEFAULT
    bench = Workbench(mode=mode, kept=KeptRuns(runs), traces=traces, jobs=jobs, tell=lambda line: tell(f"  {line}"))
    names = {claim.id for claim in claims}
    causes = {id: cause for id, cause in reviewed_causes(mode).items() if id in names}
    outcomes = list[Judgement]()
    for claim in claims:
        outcomes.append(check(claim, bench, causes))
        tell(f"{claim.id}: {outcomes[-1].verdict}")
    print_table(outcomes)
    files.write(outcomes, mode)
    for id in outdated(outcomes, causes):
        tell(f"{id} no longer fails; take it off the reviewed list")
    failing = unreviewed(outcomes)
    if failing:
        raise click.ClickException(f"these fail, and no cause of it is reviewed: {', '.join(failing)}")


@dataclass(frozen=True, kw_only=True)
class ClaimFiles:
    """The files that results go to, as far as they are named."""

    markdown: Path | None
    output: Path | None
    report: Path | None

    def check(self) -> None:
        """Raises ClickException for a file that cannot be written, which names the option."""
        for option, path in (("--markdown", self.markdown), ("--json", self.output), ("--report", self.report)):
            if path is not None:
                check_report_path(path, option)

    def write(self, outcomes: Sequence[Judgement], mode: Mode) -> None:
        """Raises ClickException, which names the path."""
        if self.markdown is not None:
            save_page(self.markdown, render_markdown(outcomes, mode))
        if self.output is not None:
            save_page(self.output, msgspec.json.encode([row_of(one) for one in outcomes]).decode())
        if self.report is not None:
            write_page(self.report, outcomes, mode)


def tell(line: str) -> None:
    click.echo(line, err=True)


def print_table(outcomes: Sequence[Judgement]) -> None:
    """Print all outcomes, and below them why claims do not hold."""
    console = open_console()
    table = new_table(tell_counts(outcomes))
    for heading in HEADINGS:
        table.add_column(heading)
    for outcome in outcomes:
        table.add_row(*cells(outcome))
    console.print(table)
    for outcome in outcomes:
        if outcome.verdict is not Verdict.HOLDS:
            told = f"{outcome.claim.id}: {outcome.verdict}. {outcome.reason}"
            console.print(told, highlight=False, soft_wrap=True, markup=False)
