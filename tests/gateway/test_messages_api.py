"""Anthropic's client is content with messages: whole, streamed, with thoughts and tools, and its errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import ServedGateway, serve_gateway
from tests.gateway.test_tools import ARGUMENTS, CALL, says, writes

TOOL: Any = {"name": "weather", "description": "Tell it", "input_schema": {"type": "object", "properties": {}}}
ASKED: Any = {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "Is it warm?"}]}
THOUGHT = "<think>\nHm.\n</think>\n\n"
COLD = [{"type": "text", "text": "No, it is cold."}]
ENABLED = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module", autouse=True)
def anthropic() -> Any:
    """Anthropic's package, which takes too long to import while tests are collected."""
    return pytest.importorskip("anthropic")


@asynccontextmanager
async def client_of(served: ServedGateway, key: str = "none") -> AsyncIterator[Any]:
    package = import_module("anthropic")
    http = package.DefaultAsyncHttpxClient(verify=False)  # as in `openai_client`
    async with package.AsyncAnthropic(base_url=served.url, api_key=key, max_retries=0, http_client=http) as client:
        yield client


async def test_a_message_has_its_text_and_usage(served: ServedGateway) -> None:
    tokens = says(served, "Yes.")
    async with client_of(served) as client:
        made = await client.messages.create(**ASKED, system=[{"type": "text", "text": "Be brief."}])
    [block] = made.content
    assert (block.type == "text" and block.text, made.stop_reason, made.role) == ("Yes.", "end_turn", "assistant")
    submitted = served.cluster.submitted[0]
    assert "Be brief." in served.tokenizer.decode(submitted.prompt)
    assert made.usage.cache_read_input_tokens == 2  # as the cluster says
    assert (made.usage.input_tokens, made.usage.output_tokens) == (len(submitted.prompt) - 2, tokens)


async def test_a_stream_adds_up_to_the_same_message(served: ServedGateway) -> None:
    model = writes(served, "hermes", "think")
    says(served, THOUGHT + CALL)
    asked = {**ASKED, "model": model, "tools": [TOOL], "thinking": ENABLED, "extra_headers": {"x-request-id": "same"}}
    async with client_of(served) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    assert whole.model_dump(exclude={"id"}) == streamed.model_dump(exclude={"id"})
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    call = whole.content[-1]
    assert call.type == "tool_use"
    assert (call.name, call.input, whole.stop_reason) == ("weather", {"city": "Bonn"}, "tool_use")


async def test_the_wire_has_the_order_of_anthropics_events(served: ServedGateway) -> None:
    says(served, "Yes.")
    async with served.http.post(f"{served.url}/v1/messages", json={**ASKED, "stream": True}) as answer:
        lines = (await answer.text()).splitlines()
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "[DONE]" not in "".join(lines)


async def test_thoughts_are_told_to_who_asks_for_them_only(served: ServedGateway, anthropic: Any) -> None:
    model = writes(served, None, "think")
    says(served, THOUGHT + "Yes.")
    async with client_of(served) as client:
        for thinking, kinds in (
            (ENABLED, ["thinking", "text"]),
            ({**ENABLED, "display": "omitted"}, ["text"]),
            (anthropic.omit, ["text"]),
        ):
            made = await client.messages.create(**{**ASKED, "model": model}, thinking=thinking)
            assert [block.type for block in made.content] == kinds


async def test_a_conversation_with_calls_goes_on(served: ServedGateway) -> None:
    model = writes(served, "hermes", "think")
    says(served, CALL)
    asked = {**ASKED, "model": model, "tools": [TOOL]}
    async with client_of(served) as client:
        made = await client.messages.create(**asked)
        call = made.content[-1]
        assert call.type == "tool_use"
        result = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": COLD,
        }
        said = [
            *ASKED["messages"],
            {"role": "assistant", "content": made.content},
            {"role": "user", "content": [result]},
        ]
        await client.messages.create(**{**asked, "messages": said})
    prompt = served.tokenizer.decode(served.cluster.submitted[-1].prompt)
    assert prompt.index("Is it warm?") < prompt.index("Yes.") < prompt.index("No, it is cold.")


async def test_a_last_message_of_the_assistant_is_continued(served: ServedGateway) -> None:
    says(served, "tiful.")
    async with client_of(served) as client:
        begun = [*ASKED["messages"], {"role": "assistant", "content": "It is beau"}]
        await client.messages.create(**{**ASKED, "messages": begun})
    prompt = served.tokenizer.decode(served.cluster.submitted[-1].prompt, skip_special_tokens=False)
    assert prompt.endswith("It is beau")


async def test_a_stop_sequence_is_named(served: ServedGateway) -> None:
    says(served, "one two three")
    async with client_of(served) as client:
        made = await client.messages.create(**ASKED, stop_sequences=["two"])
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "two")


@pytest.mark.parametrize(
    ("choice", "named"),
    [({"type": "any"}, "parameters"), ({"type": "tool", "name": "weather"}, "arguments")],
)
async def test_a_model_can_be_made_to_call(served: ServedGateway, choice: Any, named: str) -> None:
    says(served, ARGUMENTS if named == "arguments" else f'[{{"name": "weather", "parameters": {ARGUMENTS}}}]')
    async with client_of(served) as client:
        made = await client.messages.create(**ASKED, tools=[TOOL], tool_choice=choice)
    [call] = made.content
    assert (call.type == "tool_use" and call.input, made.stop_reason) == ({"city": "Bonn"}, "tool_use")
    assert named in served.cluster.submitted[-1].sampling.grammar


async def test_tokens_are_counted_as_they_are_submitted(served: ServedGateway) -> None:
    says(served, "Yes.")
    asked = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    async with client_of(served) as client:
        counted = await client.messages.count_tokens(**asked, system="Be brief.")
        await client.messages.create(**ASKED, system="Be brief.")
    assert counted.input_tokens == len(served.cluster.submitted[-1].prompt)
    assert len(served.cluster.submitted) == 1


async def test_errors_are_those_that_its_client_knows(checkpoint: Path, anthropic: Any) -> None:
    async with serve_gateway(checkpoint, api_key=("alice=alices",)) as served, client_of(served, "alices") as alice:
        with pytest.raises(anthropic.NotFoundError) as missing:
            await alice.messages.create(**{**ASKED, "model": "other"})
        assert missing.value.body == {
            "type": "error",
            "error": {"type": "not_found_error", "message": "The model 'other' does not exist."},
        }
        image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        for wrong in (
            {"messages": [{"role": "user", "content": [image]}]},
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]},
            {"tool_choice": {"type": "tool"}, "tools": [TOOL]},
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            {"extra_body": {"temperature": 1.5}},
        ):
            with pytest.raises(anthropic.BadRequestError):
                await alice.messages.create(**{**ASKED, **wrong})
        wrong = {"type": "json_schema", "schema": {"enum": []}}
        with pytest.raises(anthropic.BadRequestError, match=r"'output_config\.format' is refused"):
            await alice.messages.create(**ASKED, extra_body={"output_config": {"format": wrong}})
        async with client_of(served, "bobs") as bob:
            with pytest.raises(anthropic.AuthenticationError):
                await bob.messages.create(**ASKED)


async def test_a_stream_that_fails_ends_with_an_error_event(served: ServedGateway, anthropic: Any) -> None:
    says(served, "Yes.")
    served.cluster.finish = "error"
    async with client_of(served) as client:
        with pytest.raises(anthropic.APIStatusError):
            async with client.messages.stream(**ASKED) as stream:
                await stream.get_final_message()
