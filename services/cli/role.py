"""`livescale role` has an instance prefer to prefill, to decode, or neither."""

import json
from typing import get_args

import click

from livescale.services.cli.connection import CALL_SECONDS, ask, bus_options, find_bus, nats_req
from livescale.shared.messages.membership import Role
from livescale.shared.messages.scaling import SetRole
from livescale.shared.subjects import ROLE

EPILOG = """
\b
Examples:
  livescale role worker-0 prefill
  livescale role worker-0 colocated
The same with the nats CLI:
  nats req livescale.default.svc.planner.role '{"worker": "worker-0", "role": "prefill"}'
"""


@click.command(epilog=EPILOG)
@click.argument("worker")
@click.argument("role", metavar="ROLE", type=click.Choice(get_args(Role)))
@bus_options
def role(worker: str, role: Role, nats_url: str | None, namespace: str | None) -> None:
    """Give the instance that WORKER leads the ROLE prefill, decode or colocated.

    Only routing changes, at once: nothing is loaded or drained. What the instance decodes moves to others, with its KV,
    where it is to prefill from now on; other requests go on where they are. A role counts where
    `livescale up --disaggregation on` was given. An instance of any role still does everything where no other can.
    """
    address = find_bus(nats_url, namespace)
    answer = ask(address, lambda bus: bus.call(ROLE, SetRole(worker=worker, role=role), timeout=CALL_SECONDS))
    click.echo(f"{answer.instance}: {answer.before or 'no role'} -> {answer.role}")
    click.echo(nats_req(address, "svc.planner.role", json.dumps({"worker": worker, "role": role})), err=True)
