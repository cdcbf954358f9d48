"""`livescale topology`: what a topology file says, as a table and as a picture."""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from livescale.services.cli.lazy import load_module
from livescale.services.cli.tables import open_console, print_rows
from livescale.services.cli.topology_view import gpu_rows, host_rows, leaf_rows, summary
from livescale.shared.topology.detect import detect
from livescale.shared.topology.file import find_topology, shipped_topologies
from livescale.shared.topology.topology import Topology

EPILOG = f"""
A file names hosts, their GPUs, scale-up domains and leaf switches, with their unit: 64 GiB, 100 Gbps, 12.5 GB/s.
An entry with a count stands for that many.

\b
  leaves:                     # may be left out: all hosts on one that is non-blocking
    - name: leaf              # leaf0 ... leaf3
      count: 4
      uplink: 1.6 Tbps        # or uplink-in and uplink-out; without one non-blocking
  hosts:
    - name: a                 # a0 ... a15, dealt to the leaves in order, 4 each
      count: 16
      leaf: leaf
      memory: 1 TiB
      nic: 100 Gbps           # or nic-in and nic-out; of its memory, and of GPUs without one
      disk: 1.25 GB/s
      gpus:
        - count: 8            # a0/0 ... a0/7
          memory: 80 GB
          nic: 100 Gbps       # without one the host's
          host-link: 16 GB/s
          scale-up: 200 GB/s  # these 8 are one domain; without it each is alone

A domain of several hosts' GPUs is declared under domains, with name and bandwidth, and named by their key domain.

Shipped: {", ".join(shipped_topologies())}.
"""


@click.command(epilog=EPILOG)
@click.argument("topology", metavar="[FILE|NAME]", required=False)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw it into this file.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object instead of tables; sizes in bytes, rates in bytes/s."
)
def topology(topology: str | None, svg: Path | None, as_json: bool) -> None:
    """Show a cluster: its hosts, GPUs, domains, leaves and what their links carry.

    Without FILE or NAME this machine is shown, as far as it tells.
    """
    found, assumed = look(topology)
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        show(found, assumed)
    if svg is not None:
        draw(found, svg)


def look(text: str | None) -> tuple[Topology, Sequence[str]]:
    """The topology, and what of it is assumed."""
    if text is None:
        detected = detect()
        return detected.topology, detected.assumed
    try:
        return find_topology(text), ()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def draw(topology: Topology, path: Path) -> None:
    picture = load_module("livescale.load.topology_picture").draw_topology(topology)
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--svg {path}: {error.strerror}") from None


def show(topology: Topology, assumed: Sequence[str]) -> None:
    console = open_console()
    console.print(f"[bold]{topology.name}[/bold]: {summary(topology)}\n")
    for title, rows in (
        ("Hosts", host_rows(topology)),
        ("GPUs of each host", gpu_rows(topology)),
        ("Leaves", leaf_rows(topology)),
    ):
        if rows:
            print_rows(console, title, rows)
    for note in assumed:
        console.print(f"assumed: {note}")
