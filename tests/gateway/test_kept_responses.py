"""Responses that were made before are found by their clients alone, through any gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from livescale.services.gateway.responses_store import open_response_store
from livescale.services.gateway.settings import GatewaySettings
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
