"""Both sides of live scaling under hostile messages: requests go on, and have their tokens."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.shared.bus.contract import Ack, Context, Endpoint, ServiceInfo
from livescale.shared.messages.live import Help, Pull, Pulled, Took
from livescale.shared.messages.message import Message
from livescale.shared.messages.transfers import Node
from livescale.shared.subjects import HELP, PULL, TOOK
from tests.fuzz.effort import examples
from tests.fuzz.hostile import Shot, shot, shots, volley
from tests.fuzz.test_worker import TARGETS
from tests.shared.messages.test_message import messages
from tests.worker.live.live_workers import TARGET, LiveWorkers, live_workers
from tests.worker.requests import random_prompt, submit

LIAR = "liar"


def aimed(order: Any, live: LiveWorkers, request_id: str) -> Shot:
    """Messages with the right version, blocks and request; asker, sender and ticket may be anything."""
    if isinstance(order, Pull):
        return shot(PULL, replace(order, version=live.fleet.manifest.version, block_tokens=16), id=TARGET)
    return shot(TOOK, replace(order, request_id=request_id), id=TARGET)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@examples(2)
@given(
    st.lists(shots(TARGETS, [TARGET]), min_size=10, max_size=20),
    st.lists(messages(Pull) | messages(Took), min_size=2, max_size=6),
)
def test_whatever_is_said_to_it_a_live_target_gives_its_requests_to_who_takes_them(
    fired: list[Shot], orders: list[Message]
) -> None:
    async def main() -> None:
        async with live_workers() as live:
            await live.give_layers(2)
            request = submit("a", random_prompt(1, 150), max_tokens=8)
            await live.fleet.admit(TARGET, request)
            await live.ran(2)
            await volley(live.fleet.broker, fired)
            await volley(live.fleet.broker, [aimed(order, live, "a") for order in orders])
            assert live.fleet.state(TARGET) == "live"
            await live.help("s")
            assert await live.fleet.finished("a") == live.undisturbed(request)["a"]

    asyncio.run(main())


@examples(3)
@given(st.lists(messages(Pulled), min_size=1, max_size=5))
def test_a_source_outlives_whatever_it_is_told_to_take(answers: list[Pulled]) -> None:
    async def pull(command: Pull, context: Context) -> Pulled:
        return answers.pop() if answers else Pulled(over=True)

    async def took(command: Took, context: Context) -> Ack:
        return Ack()

    async def main() -> None:
        async with live_workers() as live:
            made = live.fleet
            bus = made.broker.connect()
            doors = [Endpoint(PULL, pull, {"id": LIAR}), Endpoint(TOOK, took, {"id": LIAR})]
            await bus.serve(ServiceInfo("worker", LIAR, "says anything"), doors)
            nobody = Node(id=LIAR, place="worker", address=b"nowhere")
            help = Help(plan_id="live", model="m", version=made.manifest.version, targets=[nobody], epoch=1)
            await made.bus.call(HELP, help, timeout=5, id="s")
            await made.until(lambda: made.reports["s"].helping == [])
            request = submit("a", random_prompt(1, 150), max_tokens=8)
            await made.admit("s", request)
            assert await made.finished("a") == live.undisturbed(request)["a"]

    asyncio.run(main())
