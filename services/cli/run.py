"""`livescale run <service>`: one service in this process."""

import importlib
from collections.abc import Mapping

import click

from livescale.services.cli.groups import LazyCommand, LazyGroup
from livescale.services.cli.options import settings_options
from livescale.shared.runtime.settings import Settings

SUMMARIES: Mapping[str, str] = {
    "gateway": "The REST door: OpenAI API, tokenization, streams.",
    "router": "A queue for each model; decides who serves which request.",
    "registry": "Membership and leases; who holds which parameters.",
    "planner": "Scale plans: spare workers, sources, chains.",
    "monitor": "Turns the load of each model into decisions to scale.",
    "host": "The host cache of one machine; it reads checkpoints.",
    "worker": "Arena, engine and KV cache of one GPU or CPU core.",
}

HELP = """Run one service until SIGTERM or Ctrl-C, against the NATS server of --nats-url or NATS_URL.

A whole system has one registry, router, planner and monitor, any number of gateways and workers,
and a host on every machine. Several services of one kind need ids of their own (--id).

\b
  export NATS_URL=nats://10.0.0.1:4222
  livescale run registry
  livescale run worker --id worker-7 --bind 10.0.0.2
"""


class Services(LazyGroup):
    """The services, each command made from its settings struct when it is asked for."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return service_command(cmd_name) if cmd_name in SUMMARIES else None


def service_command(service: str) -> click.Command:
    """The command of one service; its code (and torch, in a worker) is imported only when it starts."""
    kind: type[Settings] = getattr(
        importlib.import_module(f"livescale.services.{service}.settings"), f"{service.capitalize()}Settings"
    )

    @settings_options(kind)
    def start(settings: Settings) -> None:
        importlib.import_module(f"livescale.services.{service}.main").main(settings)

    return click.command(service, help=SUMMARIES[service])(start)


run = Services("run", {name: LazyCommand("", line) for name, line in SUMMARIES.items()}, HELP)
