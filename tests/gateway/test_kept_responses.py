"""Responses that were made before are found by their clients alone, through any gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from livescale.services.gateway.kept_responses import ResponseStore, open_response_store
from livescale.services.gateway.settings import GatewaySettings
from livescale.shared.messages.responses import KeptResponse
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.simulation.broker_state import LocalKeyValue
from tests.gateway.conftest import ServedGateway, openai_client, serve_gateway


async def test_any_gateway_answers_and_another_keys_response_is_not_found(checkpoint: Path) -> None:
    keys = ("alice=alices", "bob=bobs")
    async with serve_gateway(checkpoint, api_key=keys) as served, other_client(served, "alices") as alice:
        made = await alice.responses.create(model="tiny", input="hello", max_output_tokens=2)
        second = open_response_store(served.gateway._world, GatewaySettings())
        assert await second.get("alice", made.id) is not None
        async with other_client(served, "bobs") as bob:
            for asking in (
                bob.responses.retrieve(made.id),
                bob.responses.cancel(made.id),
                bob.responses.delete(made.id),
                bob.responses.create(model="tiny", input="more", previous_response_id=made.id),
            ):
                with pytest.raises(openai.NotFoundError) as refused:
                    await asking
                assert refused.value.code == "response_not_found"
        await alice.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await alice.responses.retrieve(made.id)


@asynccontextmanager
async def other_client(served: ServedGateway, key: str) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(served.url, key) as client:
        yield client


class Hand(SystemClock):
    """A clock that is moved by hand."""

    time = 0.0

    def now(self) -> float:
        return self.time


def kept(id: str, size_bytes: int = 10) -> KeptResponse:
    return KeptResponse(id=id, response="x" * (size_bytes - 2), conversation="[]", deadline=1.0)


def store_of(values: dict[str, bytes], clock: Hand, most_bytes: int, connected: bool = True) -> ResponseStore:
    return ResponseStore(LocalKeyValue(values, lambda: connected), clock, 60.0, most_bytes)


async def test_a_client_finds_its_own_only() -> None:
    store = store_of({}, Hand(), 100)
    assert await store.put("alice", kept("resp-1"))
    assert await store.get("alice", "resp-1") == kept("resp-1")
    assert await store.get("bob", "resp-1") is None
    await store.delete("bob", "resp-1")
    assert await store.get("alice", "resp-1") is not None
    await store.delete("alice", "resp-1")
    assert await store.get("alice", "resp-1") is None


async def test_the_oldest_give_way_and_what_is_too_large_is_not_kept() -> None:
    values: dict[str, bytes] = {}
    store = store_of(values, Hand(), 30)
    for id in ("resp-1", "resp-2", "resp-3", "resp-4"):
        assert await store.put("alice", kept(id))
    assert await store.put("bob", kept("resp-5"))
    assert [await store.get("alice", f"resp-{n}") is not None for n in (1, 2, 3, 4)] == [False, True, True, True]
    assert await store.put("alice", kept("resp-4", 20))  # what is new of it takes the place of what was
    assert [await store.get("alice", f"resp-{n}") is not None for n in (2, 3, 4)] == [False, True, True]
    assert not await store.put("alice", kept("resp-6", 31))
    assert len(values) == 3


async def test_what_is_gone_by_itself_counts_no_more() -> None:
    clock = Hand()
    store = store_of({}, clock, 30)
    assert await store.put("alice", kept("resp-1", 30))
    clock.time = 60.0
    assert await store.put("alice", kept("resp-2", 30))
    assert await store.get("alice", "resp-1") is not None  # the server drops it, not the gateway


async def test_what_the_server_does_not_take_is_not_kept() -> None:
    assert not await store_of({}, Hand(), 100, connected=False).put("alice", kept("resp-1"))
