"""pydantic-ai: agents over chats and over responses, with a history, whole and streamed."""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")


async def streamed(agent: Any) -> Any:
    async with agent.run_stream("hello") as stream:
        return await stream.get_output()


for kind in (OpenAIChatModel, OpenAIResponsesModel):
    agent = Agent(kind("m", provider=provider), model_settings={"max_tokens": 5, "temperature": 0})
    first = agent.run_sync("hello")
    assert first.usage.output_tokens == 5
    assert agent.run_sync("more", message_history=first.all_messages()).output
    assert asyncio.run(streamed(agent)) == first.output
