"""The fixtures of vLLM's tests of tools. Its own load models from the hub and start a server for each."""

import os
from collections.abc import AsyncIterator

import openai
import pytest


@pytest.fixture
def server_config() -> dict[str, str]:
    """Of all that vLLM says of a server these tests read its system prompt, which there is none of, and its model."""
    return {"model": os.environ["UPSTREAM_MODEL"]}


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    url = os.environ["TEST_API_BASE_URL"]
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as asking:
        yield asking
