"""`livescale tap` prints the traffic of the bus, one line for each message.

Messages are decoded with the `msgpack` package, independently of the codec that writes them.
"""

import asyncio
import json
from contextlib import suppress
from datetime import datetime
from typing import Any

import click
import msgpack

from livescale.services.cli.connection import CONNECT_SECONDS, BusAddress, bus_options, connection_error, find_bus

# Users' prompts and answers: shown as a count of tokens unless asked for.
TOKENS = ("prompt", "generated", "token_ids")
TEXT_LIMIT = 60
ITEMS_LIMIT = 4

EPILOG = """
\b
Examples:
  livescale tap --subject 'evt.>'         decisions, plans, transfers, blocks
  livescale tap --subject 'hb.worker.*'   what workers report, twice a second
  livescale tap --limit 10                the next ten messages
The same with the nats CLI, which shows JSON but not msgpack:
  nats sub 'livescale.default.evt.>'
"""


@click.command(epilog=EPILOG)
@click.option(
    "--subject",
    default=">",
    show_default=True,
    help="NATS subject to listen to, below livescale.NAMESPACE; quote it for the shell.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Number of messages after which to end; by default it goes on until Ctrl-C.",
)
@click.option("--full", is_flag=True, help="Show token ids of prompts and outputs, and long values in full.")
@bus_options
def tap(subject: str, limit: int | None, full: bool, nats_url: str | None, namespace: str | None) -> None:
    """Print the messages on the bus until Ctrl-C: time, subject, type and fields.

    In a subject, * stands for any one word, and > at the end for any words. Answers to calls go to private inboxes and
    are not seen.
    """
    with suppress(KeyboardInterrupt):
        asyncio.run(listen(find_bus(nats_url, namespace), subject, limit, full))


async def listen(address: BusAddress, subject: str, limit: int | None, full: bool) -> None:
    """Print `limit` messages. Raises ClickException without a server or for a subject that is none."""
    import livescale.shared.bus.without_websockets  # noqa: F401

    # isort: split
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from livescale.shared.bus.connection import Callbacks, close, connect
    from livescale.shared.bus.contract import BusError

    client, messages = Client(), asyncio.Queue[Msg | None]()
    prefix, count = f"livescale.{address.namespace}.", 0

    def end() -> None:
        messages.put_nowait(None)

    try:
        await connect(client, address.url, "tap", CONNECT_SECONDS, Callbacks(closed=end), address.files)
    except BusError as error:
        raise connection_error(error, address) from None
    try:
        await client.subscribe(prefix + subject, cb=messages.put)
        while count != limit and (message := await messages.get()) is not None:
            count += 1
            at = datetime.now().astimezone().strftime("%H:%M:%S.%f")[:-3]
            click.echo(f"{at} {message.subject.removeprefix(prefix)}  {describe(message.data, full)}")
    except nats.errors.BadSubjectError:
        raise click.BadParameter(
            f"{subject!r} is not a NATS subject; write one such as 'evt.>'", param_hint="--subject"
        ) from None
    finally:
        await close(client)


def describe(data: bytes, full: bool) -> str:
    """A message's type and fields in one line. Bytes that cannot be decoded are counted."""
    try:
        content = json.loads(data or b"{}") if data[:1] in (b"", b"{") else msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        content = None
    if not isinstance(content, dict):
        return f"{len(data)} bytes that are no message"
    return f"{content.get('type', '-')}  {_fields(content, full)}".rstrip()


def _fields(content: dict[str, Any], full: bool) -> str:
    return " ".join(f"{name}={_plain(name, value, full)}" for name, value in content.items() if name != "type")


def _plain(name: str, value: object, full: bool) -> str:
    match value:
        case list() if name in TOKENS and not full:
            return f"<{len(value)} tokens>"
        case list():
            shown = value if full else value[:ITEMS_LIMIT]
            more = [f"+{len(value) - len(shown)}"] if len(value) > len(shown) else []
            return f"[{', '.join([*(_plain('', item, full) for item in shown), *more])}]"
        case dict():
            return "{" + _fields(value, full) + "}"
        case bytes():
            return f"<{len(value)} bytes>"
        case float():
            return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.3f}"
        case str() if len(value) > TEXT_LIMIT and not full:
            return repr(value[:TEXT_LIMIT] + "…")
        case str() if not value or " " in value:
            return repr(value)
        case _:
            return str(value)
