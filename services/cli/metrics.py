"""`livescale metrics` prints the metrics of all processes, and tells Prometheus where their system ports are."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from livescale.services.cli.connection import CALL_SECONDS, ask, bus_options, find_bus
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.process.exposition import ask_expositions, merge_expositions
from livescale.shared.runtime.files import write_atomically
from livescale.shared.subjects import SNAPSHOT

STDOUT = Path("-")
READABLE = 0o666  # less the umask: Prometheus, which reads the file, is another user

EPILOG = """
\b
Examples:
  livescale metrics | grep livescale_scales_total
  livescale metrics --process worker-0
  livescale metrics --targets /etc/prometheus/livescale.json --every 10
In prometheus.yml:
  scrape_configs:
    - job_name: livescale
      file_sd_configs: [{files: [/etc/prometheus/livescale.json]}]
"""


class TargetGroup(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a file for Prometheus' file_sd_configs. `instance` is the process's id, which survives a restart as
    its port need not."""

    targets: list[str]
    labels: dict[str, str]


@click.command(epilog=EPILOG)
@click.option(
    "--process",
    "process_id",
    metavar="ID",
    help="Print the metrics of this process only, as its own /metrics has them.",
)
@click.option(
    "--targets",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Write the processes' system ports to this file, for file_sd_configs, instead; - is stdout.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="With --targets: keep the file up to date until Ctrl-C.",
)
@bus_options
def metrics(
    process_id: str | None, targets: Path | None, every: float | None, nats_url: str | None, namespace: str | None
) -> None:
    """Print the metrics of all processes in Prometheus' text format.

    Each sample names its process. Processes are asked over the bus, so their ports need not be reached from here.
    """
    if every is not None and targets in (None, STDOUT):
        raise click.UsageError("--every keeps a file up to date: name it with --targets FILE")
    address = find_bus(nats_url, namespace)
    if targets is None:
        click.echo(ask(address, lambda bus: gather(bus, process_id)), nl=False)
        return

    with suppress(KeyboardInterrupt):
        ask(address, lambda bus: keep_targets(bus, targets, address.namespace, every))


async def keep_targets(bus: Bus, path: Path, namespace: str, every: float | None) -> None:
    """Write the file once, or every so many seconds for ever. While the registry is away the file stays as it is."""
    write_targets(path, target_groups(await ask_members(bus), namespace))
    is_away = False
    while every is not None:
        await asyncio.sleep(every)
        try:
            members = await ask_members(bus)
        except BusError as error:
            if not is_away:
                click.echo(f"{path} stays as it is: {error}", err=True)
            is_away = True
        else:
            is_away = False
            write_targets(path, target_groups(members, namespace))


async def ask_members(bus: Bus) -> list[Member]:
    """All processes that the registry does not take for dead."""
    snapshot = await bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
    return [member for member in snapshot.members if member.lease != "dead"]


async def gather(bus: Bus, process_id: str | None) -> bytes:
    """The Prometheus text of one process, or of all. Raises ClickException where the one does not answer."""
    members = await ask_members(bus)
    if process_id is None:
        texts = await ask_expositions(bus, members)
        silent = sorted({member.id for member in members} - texts.keys())
        merged, unreadable = merge_expositions(texts)
        for id in [*silent, *unreadable]:
            click.echo(f"{id} did not answer", err=True)
        return merged
    chosen = [member for member in members if member.id == process_id]
    if not chosen:
        raise click.ClickException(f"no process {process_id!r} is alive; `livescale status` lists those that are")
    texts = await ask_expositions(bus, chosen)
    if process_id not in texts:
        raise click.ClickException(f"{process_id} did not answer")
    return texts[process_id].encode()


def target_groups(members: Sequence[Member], namespace: str) -> list[TargetGroup]:
    """One group for each process that has a system port, in the order of ids."""
    return [
        TargetGroup(
            targets=[member.system],
            labels={
                "instance": member.id,
                "component": member.service,
                "machine": member.host,
                "livescale_namespace": namespace,
            },
        )
        for member in members
        if member.system is not None
    ]


def write_targets(path: Path, groups: Sequence[TargetGroup]) -> None:
    """Write the file so that its readers find the old content or the new. Raises ClickException."""
    content = msgspec.json.format(msgspec.json.encode(groups), indent=2) + b"\n"
    if path == STDOUT:
        click.echo(content, nl=False)
        return
    try:
        write_atomically(path, content, READABLE)
    except OSError as error:
        raise click.ClickException(f"targets: {path}: {error.strerror}; name a file that you may write") from None
