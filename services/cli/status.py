"""`livescale status` shows which processes run, which workers serve which models, and what waits."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import click
import msgspec
from msgspec.structs import replace

from livescale.services.cli.connection import CALL_SECONDS, ask, bus_options, find_bus
from livescale.services.cli.incidents_view import IncidentRow, ask_incidents, clock_time
from livescale.services.cli.status_view import Status, make_status
from livescale.services.cli.tables import open_console, print_rows
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.membership import AskMetrics, Member, QueueLoad, RouterReport
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.messages.scaling import AskDecisions, Decision
from livescale.shared.subjects import DECISIONS, HEARTBEAT, METRICS, SNAPSHOT

# Routers report twice a second.
REPORT_SECONDS = 1.5
RECENT = 10
MEMORY_SECONDS = 1.0
# Columns that are not shown where they are zero in every row.
QUIET = frozenset({"rank", "ready", "total", "live_layers", "live_queue", "sends_kv_of", "keeps_blocks"})

EPILOG = """
\b
The same with the nats CLI (the queues are in the router's heartbeat):
  nats req livescale.default.svc.registry.snapshot ''
  nats sub 'livescale.default.hb.router.*'
"""


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--verbose", is_flag=True, help="Show the address of each process's system port too.")
@bus_options
def status(as_json: bool, verbose: bool, nats_url: str | None, namespace: str | None) -> None:
    """Show processes, workers, instances and queues.

    The columns ready and total count blocks of parameters. Queues that no router has reported are shown as unknown,
    in JSON as null. Recent events are deaths, restarts, and times when a process or the machine stood still. Where
    requests wait, or the monitor only advises, its last decision says why the model is scaled, or is not.
    """
    found = ask(find_bus(nats_url, namespace), ask_status)
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        print_status(found, verbose)


async def ask_status(bus: Bus) -> Status:
    reports = await bus.subscribe(HEARTBEAT, service="router")
    snapshot = await bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
    queues: list[QueueLoad] | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(REPORT_SECONDS):
            async for received in reports:
                if isinstance(received.message, RouterReport):
                    queues = received.message.queues
                    break
    await reports.close()
    waiting = {queue.model for queue in queues or () if queue.waiting_requests}
    last = await ask_decisions(bus, [queue.model for queue in queues or ()])
    decisions = [each for each in last if each.advice or each.model in waiting]
    incidents = await ask_incidents(bus, RECENT)
    return make_status(snapshot, queues, decisions, incidents, await ask_memory(bus, snapshot.members))


async def ask_memory(bus: Bus, members: Sequence[Member]) -> dict[str, int]:
    """The resident memory of each process that is alive and answers, by id; shared pages count in each."""

    async def ask_one(id: str) -> tuple[str, int | None]:
        with suppress(BusError):
            answer = await bus.call(METRICS, AskMetrics(), timeout=MEMORY_SECONDS, id=id)
            return id, find_resident(answer.text)
        return id, None

    found = await asyncio.gather(*(ask_one(each.id) for each in members if each.lease == "alive"))
    return {id: size for id, size in found if size is not None}


def find_resident(exposition: str) -> int | None:
    for line in exposition.splitlines():
        if line.startswith("process_resident_memory_bytes"):
            return int(float(line.rsplit(" ", 1)[1]))
    return None


async def ask_decisions(bus: Bus, models: list[str]) -> list[Decision]:
    """The monitor's last decision on each model, where there is one."""
    decisions: list[Decision] = []
    for model in models:
        with suppress(BusError):  # a monitor that is away leaves the rest to be shown
            answer = await bus.call(DECISIONS, AskDecisions(model=model, limit=1), timeout=CALL_SECONDS)
            decisions += answer.decisions
    return decisions


def print_status(found: Status, verbose: bool) -> None:
    processes = found.processes if verbose else [replace(row, system=None) for row in found.processes]
    console = open_console()
    if found.warning is not None:
        console.print(f"{found.warning}\n", style="bold")
    for title, rows in (
        ("Processes", processes),
        ("Workers", found.workers),
        ("Models", found.models),
        ("Instances", found.instances),
        ("Live scaling", found.live),
        ("Queues", found.queues),
        ("Recent events", [recent_row(row) for row in found.events]),
    ):
        if rows is None:
            console.print(f"{title}: unknown, no router reported")
        elif not rows:
            console.print(f"{title}: none\n")
        else:
            print_rows(console, title, rows, quiet=QUIET)


class RecentRow(msgspec.Struct, frozen=True, kw_only=True):
    """An incident with its time of day, as people read it."""

    at: str
    who: str
    what: str


def recent_row(row: IncidentRow) -> RecentRow:
    return RecentRow(at=clock_time(row.at), who=row.who, what=row.what)
