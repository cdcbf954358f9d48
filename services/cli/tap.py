"""`livescale tap`: the bus traffic, decoded."""

import asyncio
from contextlib import suppress
from datetime import datetime

import click

from services.cli.connection import CONNECT_SECONDS, BusAddress, bus_options, connection_error, find_bus
from services.cli.tap_view import describe

EPILOG = """
\b
Examples:
  livescale tap 'evt.>'              decisions, plans, transfers, blocks
  livescale tap 'hb.worker.*'        what workers report, twice a second
  livescale tap 'svc.>' --count 10   the next ten questions to the services
The same with the nats CLI, which shows JSON but not msgpack:
  nats sub 'livescale.default.evt.>'
"""


@click.command(epilog=EPILOG)
@click.argument("subject", default=">")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End after so long.")
@click.option("--full", is_flag=True, help="Print long lists whole, token ids of prompts and outputs among them.")
@bus_options
def tap(
    subject: str, count: int | None, seconds: float | None, full: bool, nats_url: str | None, namespace: str | None
) -> None:
    """Print what goes over the bus, one line a message, until Ctrl-C.

    SUBJECT is below livescale.NAMESPACE, with the wildcards of NATS: * is one word, a last > the rest. Answers go to
    inboxes of their own and are not seen.
    """
    address = find_bus(nats_url, namespace)
    with suppress(KeyboardInterrupt):
        asyncio.run(listen(address, subject, count, seconds, full))


async def listen(address: BusAddress, subject: str, count: int | None, seconds: float | None, full: bool) -> None:
    """Print until `count` messages were seen or `seconds` are over. Raises ClickException without a server."""
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from shared.bus.connection import connect
    from shared.bus.contract import BusError

    prefix = f"livescale.{address.namespace}."
    seen = 0
    enough = asyncio.Event()

    async def show(message: Msg) -> None:
        nonlocal seen
        if enough.is_set():
            return
        seen += 1
        at = datetime.now().astimezone().strftime("%H:%M:%S.%f")[:-3]
        click.echo(f"{at} {message.subject.removeprefix(prefix)} {describe(message.data, full)}")
        if seen == count:
            enough.set()

    def ignore(*_: object) -> None: ...

    client = Client()
    try:
        await connect(client, address.url, "tap", CONNECT_SECONDS, ignore, ignore, enough.set, ignore)
    except BusError as error:
        raise connection_error(error) from None
    try:
        await client.subscribe(prefix + subject, cb=show)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await enough.wait()
    except nats.errors.BadSubjectError:
        raise click.BadParameter(f"{subject!r} is no NATS subject, for example 'evt.>'", param_hint="SUBJECT") from None
    finally:
        await client.close()
