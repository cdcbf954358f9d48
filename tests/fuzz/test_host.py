"""A real host under hostile messages: it refuses them, and reads and sends right parameters afterwards."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.shared.bus.contract import Call, Topic
from livescale.shared.links.open import open_link
from livescale.shared.messages.message import Message
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import CheckModel, FetchModel, ReadModel, ReleaseModel
from livescale.shared.messages.transfers import Abort, Send
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.subjects import ABORT, CHECK_MODEL, FETCH_MODEL, READ_MODEL, RELEASE_MODEL, SEND
from tests.checkpoints import tiny_checkpoint
from tests.fuzz.effort import examples
from tests.fuzz.hostile import Shot, shot, shots, volley
from tests.host.local import HOST, LocalHost, local_host
from tests.host.test_sending import receive
from tests.shared.messages.test_message import messages

TARGETS: list[Topic[Any] | Call[Any, Any]] = [
    *(ABORT, CHECK_MODEL, FETCH_MODEL, READ_MODEL, RELEASE_MODEL, SEND),
]
SOCKET = LinkSettings(transport="socket")
GOOD = "good"
ORDERS: list[type[Message]] = [Send, Abort, CheckModel, ReadModel, FetchModel, ReleaseModel]


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@examples(2)
@given(st.lists(shots(TARGETS, [HOST]), min_size=20, max_size=40))
def test_whatever_is_said_to_it_a_host_reads_and_sends(fired: list[Shot]) -> None:
    async def main() -> None:
        async with local_host(open_link=lambda: open_link(SOCKET)) as here:
            await volley(here.broker, fired)
            await serves(here)
            await volley(here.broker, fired)
            await serves(here)

    asyncio.run(main())


@examples(3)
@given(st.lists(st.one_of(list(map(messages, ORDERS))), min_size=10, max_size=20))
def test_orders_for_what_it_holds_that_lead_nowhere_keep_a_host_from_nothing(orders: list[Any]) -> None:
    """The model, the version and the epoch are right; addresses, tickets, chunks and paths are anything."""

    async def main() -> None:
        async with local_host(open_link=lambda: open_link(SOCKET)) as here:
            manifest = await held(here)
            await volley(here.broker, [aimed(order, manifest) for order in orders])
            plans = {order.plan_id for order in orders if isinstance(order, Send)}
            await volley(here.broker, [shot(ABORT, Abort(plan_id=plan, reason="enough"), id=HOST) for plan in plans])
            await here.until(lambda: here.reports[-1].flows_out == 0)
            await serves(here)

    asyncio.run(main())


def aimed(order: Any, manifest: Manifest) -> Shot:
    match order:
        case Send():
            return shot(SEND, replace(order, version=manifest.version, epoch=1), id=HOST)
        case FetchModel():
            spec = replace(order.spec, name=GOOD)
            return shot(FETCH_MODEL, replace(order, spec=spec, manifest=manifest, epoch=1), id=HOST)
        case ReleaseModel():
            return shot(RELEASE_MODEL, replace(order, model=GOOD, version=manifest.version), id=HOST)
        case ReadModel():
            return shot(READ_MODEL, order, id=HOST)
        case CheckModel():
            return shot(CHECK_MODEL, order, id=HOST)
        case _:
            return shot(ABORT, order, id=HOST)


async def held(here: LocalHost) -> Manifest:
    """Ask for the model again, as the registry does, where a hostile message had it released or fetched from
    nowhere."""
    while True:
        here.reads.clear()
        await here.read(tiny_checkpoint("llama"), GOOD)
        await here.until(lambda: any(read.model == GOOD for read in here.reads))
        manifest = next(read.manifest for read in here.reads if read.model == GOOD)
        if manifest is not None:
            return manifest


async def serves(here: LocalHost) -> None:
    link = await open_link(SOCKET)
    try:
        await receive(here, await held(here), link)
    finally:
        await link.close()
