"""`livescale scale` sets the number of a model's instances by hand."""

import asyncio
import json
from typing import get_args

import click

from livescale.services.cli.connection import CALL_SECONDS, ask, bus_options, find_bus, nats_req
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.scaling import AskScales, Scale, ScaleAccepted, ScaleRecord
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.subjects import SCALE, SCALES

POLL_SECONDS = 0.2
RECORDS = 1_000

EPILOG = """
\b
Examples:
  livescale scale tiny --instances 2 --wait
  livescale scale tiny --instances 0
The same with the nats CLI:
  nats req livescale.default.svc.planner.scale '{"model": "tiny", "instances": 2}'
"""


@click.command(epilog=EPILOG)
@click.argument("name")
@click.option("--instances", required=True, type=click.IntRange(min=0), help="Number of instances to have.")
@click.option(
    "--live",
    type=click.Choice(get_args(LiveMode)),
    help="Mode of this scale's live scaling, as in `livescale up --help`; by default the planner's.",
)
@click.option(
    "--wait", is_flag=True, help="Return only once new instances serve, or the workers of removed ones are spare."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Most seconds to wait with --wait.",
)
@bus_options
def scale(
    name: str,
    instances: int,
    live: LiveMode | None,
    wait: bool,
    timeout: float,
    nats_url: str | None,
    namespace: str | None,
) -> None:
    """Set the number of instances of the model NAME.

    New instances get their parameters from the least busy source. Removed instances first finish the requests that
    they have. The monitor goes on deciding by the load: for a fixed number, set min-instances and max-instances.
    """
    address = find_bus(nats_url, namespace)
    accepted, record = ask(address, lambda bus: ask_scale(bus, name, instances, timeout if wait else None, live))
    click.echo(f"{name}: {accepted.actual} -> {accepted.target} instances: {accepted.reason}")
    body = {"model": name, "instances": instances} | ({"live": live} if live else {})
    click.echo(nats_req(address, "svc.planner.scale", json.dumps(body)), err=True)
    if record is not None:
        click.echo(f"{record.id} {record.state}: {record.outcome}")
        if record.state == "failed":
            raise click.ClickException(f"the scale failed; `livescale why {name}` shows its phases")


async def ask_scale(
    bus: Bus, model: str, instances: int, wait_seconds: float | None, live: LiveMode | None = None
) -> tuple[ScaleAccepted, ScaleRecord | None]:
    """The planner's answer, and with `wait_seconds` the record of the scale once it has ended."""
    accepted = await bus.call(SCALE, Scale(model=model, instances=instances, live=live), timeout=CALL_SECONDS)
    if wait_seconds is None or accepted.scale_id is None:
        return accepted, None
    try:
        async with asyncio.timeout(wait_seconds):
            return accepted, await wait_for_end(bus, model, accepted.scale_id)
    except TimeoutError:
        raise click.ClickException(
            f"{accepted.scale_id} has not ended after {wait_seconds:g} s and goes on; `livescale why {model}` shows "
            "its progress"
        ) from None


async def wait_for_end(bus: Bus, model: str, scale_id: str) -> ScaleRecord:
    while True:
        answer = await bus.call(SCALES, AskScales(model=model, limit=RECORDS), timeout=CALL_SECONDS)
        for record in answer.records:
            if record.id == scale_id and record.state in ("done", "failed"):
                return record
        await asyncio.sleep(POLL_SECONDS)
