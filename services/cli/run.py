"""`livescale run <service>`: one service in this process."""

import gc
import importlib
from collections.abc import Mapping

import click

from livescale.services.cli.groups import LazyCommand, LazyGroup
from livescale.services.cli.options import settings_options
from livescale.shared.messages.membership import ServiceName
from livescale.shared.process.automatic import CannotChoose, chosen
from livescale.shared.runtime.settings import ProcessSettings

SUMMARIES: Mapping[ServiceName, str] = {
    "gateway": "Serve the REST API: OpenAI endpoints, tokenization, streams.",
    "router": "Queue requests by model, and choose the instance for each.",
    "registry": "Keep which processes are alive, and which hold which parameters.",
    "planner": "Plan each scale and carry it out: workers, sources, chains.",
    "monitor": "Decide from the load of each model when to scale.",
    "host": "Read checkpoints, and keep them in the memory of one machine.",
    "worker": "Run models on one GPU or CPU core.",
}

HELP = """Run one service until SIGTERM or Ctrl-C.

The services of a system find each other on the NATS server of --nats-url or NATS_URL.

A whole system has one registry, one planner, one monitor, at least one router and one gateway, any number of
workers, and one host on every machine. Several services of one kind each need an id of their own (--id).

\b
  export NATS_URL=nats://10.0.0.1:4222
  livescale run registry
  livescale run worker --id worker-7 --bind 10.0.0.2
  livescale run worker --id auto --bind auto
"""


class Services(LazyGroup):
    """The services, each command made from its settings struct when it is asked for."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return next((service_command(name) for name in SUMMARIES if name == cmd_name), None)


def service_command(service: ServiceName) -> click.Command:
    """The command of one service; its code (and torch, in a worker) is imported only when it starts."""
    kind: type[ProcessSettings] = getattr(
        importlib.import_module(f"livescale.services.{service}.settings"), f"{service.capitalize()}Settings"
    )

    @settings_options(kind)
    def start(settings: ProcessSettings) -> None:
        gc.disable()  # until the process runs: no module becomes garbage, and looking through them takes a fifth longer
        try:
            with chosen(settings, service) as complete:
                importlib.import_module(f"livescale.services.{service}.main").main(complete)
        except CannotChoose as error:
            raise click.ClickException(str(error)) from None

    return click.command(service, help=SUMMARIES[service])(start)


run = Services("run", {name: LazyCommand("", line) for name, line in SUMMARIES.items()}, HELP)
