"""`livescale why`: every decision of a model, what it was made from, and what came of it."""

import click
import msgspec

from livescale.services.cli.connection import CALL_SECONDS, ask, bus_options, find_bus
from livescale.services.cli.incidents_view import ask_incidents
from livescale.services.cli.why_view import explain
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.membership import Incident
from livescale.shared.messages.registry import AskModels
from livescale.shared.messages.scaling import AskDecisions, AskScales, Decision, ScaleRecord
from livescale.shared.subjects import DECISIONS, MODELS, SCALES

MOST_DECISIONS = 1_000

EPILOG = """
\b
The same with the nats CLI:
  nats req livescale.default.svc.planner.scales '{"model": "tiny"}'
  nats req livescale.default.svc.monitor.decisions '{"model": "tiny"}'
"""


class Why(msgspec.Struct, frozen=True):
    """What `--json` prints; all newest last. `error`: why the model cannot be read, if it cannot. `incidents`: deaths,
    restarts and stalls of late, of all processes."""

    decisions: list[Decision]
    scales: list[ScaleRecord]
    error: str | None = None
    incidents: list[Incident] = []


@click.command(epilog=EPILOG)
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1, max=1000), default=10, show_default=True, help="How many of each.")
@click.option(
    "--verbose", is_flag=True, envvar="LIVESCALE_VERBOSE", show_envvar=True, help="With what each was decided from."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@bus_options
def why(name: str, limit: int, verbose: bool, as_json: bool, nats_url: str | None, namespace: str | None) -> None:
    """Why the model NAME was scaled, or was not.

    Each decision with its rule and reason, holds in a row as one; of a scale the plan, the moments of its phases and
    the outcome; between them deaths, restarts and stalls.
    """
    # Holds in a row are one of them.
    decisions = limit if as_json else MOST_DECISIONS
    found = ask(find_bus(nats_url, namespace), lambda bus: ask_why(bus, name, limit, decisions))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    from rich.console import Console

    console = Console(highlight=False)
    told = explain(name, found.decisions, found.scales, found.error, found.incidents, limit=limit, verbose=verbose)
    for line in told:
        console.print(line, markup=False, soft_wrap=True)


async def ask_why(bus: Bus, model: str, limit: int, decisions_limit: int) -> Why:
    scales = await bus.call(SCALES, AskScales(model=model, limit=limit), timeout=CALL_SECONDS)
    decisions = await bus.call(DECISIONS, AskDecisions(model=model, limit=decisions_limit), timeout=CALL_SECONDS)
    entries = {entry.spec.name: entry for entry in (await bus.call(MODELS, AskModels(), timeout=CALL_SECONDS)).models}
    if model not in entries and not scales.records and not decisions.decisions:
        known = ", ".join(sorted(entries)) or "none"
        raise click.ClickException(f"no model {model!r} is registered; there are {known}")
    error = entries[model].error if model in entries else None
    return Why(decisions.decisions, scales.records, error, await ask_incidents(bus))
