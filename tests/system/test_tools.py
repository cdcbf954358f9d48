"""Calls of tools in texts that a model made: a taught checkpoint behind a real gateway, and real clients before it."""

import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from tokenizers import Tokenizer

from livescale.services.gateway.tool_calls.formats import CALLS
from tests.checkpoints import taught_checkpoint
from tests.system.conftest import System

pytestmark = pytest.mark.system

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bonn", "Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
BONN = {"city": "Bonn"}
# What the model was taught to write where it is asked for a format.
ASKS = {
    "hermes": "Is it warm in Bonn?",
    "mistral": "As Mistral.",
    "qwen3_coder": "As Qwen3-Coder.",
    "llama3_json": "As Llama.",
    "pythonic": "In Python.",
    "harmony": "As gpt-oss.",
    "deepseek": "As DeepSeek.",
}
FORMATS = [name for name in ASKS if name != "hermes"]


def admin(system: System, method: str, path: str, body: object = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"{system.url}/admin/v1/{path}", data, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status < 300


@dataclass
class TaughtModel:
    """The model that was taught, registered with the format of its calls that gateways read."""

    system: System
    client: OpenAI
    reads: str = "hermes"

    def read(self, name: str) -> None:
        """Have gateways read this format."""
        if name == self.reads:
            return
        reasoning = "harmony" if name == "harmony" else "think"
        formats = {"tool_call_parser": name, "reasoning_parser": reasoning}
        admin(self.system, "POST", "models", {"name": "taught", "path": str(taught_checkpoint()), **formats})
        self.reads = name
        deadline = time.monotonic() + 60
        while not calls_of(ask(self.client, ASKS[name])):  # a gateway asks for the models every second
            assert time.monotonic() < deadline, f"no call is read in the format {name}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def taught(system: System) -> Iterator[TaughtModel]:
    """On the package's system, which has learned another model meanwhile."""
    admin(system, "POST", "models", {"name": "taught", "path": str(taught_checkpoint()), "max_instances": 1})
    with OpenAI(base_url=f"{system.url}/v1", api_key="none", max_retries=0, timeout=60) as opened:
        yield TaughtModel(system, opened)
    admin(system, "DELETE", "models/taught")


@pytest.fixture
def client(taught: TaughtModel) -> OpenAI:
    """A client of the system, whose model writes its calls as usual, whatever another test had it do."""
    taught.read("hermes")
    return taught.client


def ask(client: OpenAI, content: str, **more: Any) -> ChatCompletion:
    messages = [{"role": "user", "content": content}]
    answer: ChatCompletion = client.chat.completions.create(
        **{"model": "taught", "messages": messages, "tools": [WEATHER], "temperature": 0, "max_tokens": 200, **more}
    )
    return answer


def calls_of(answer: ChatCompletion) -> list[tuple[str, Any]]:
    called = answer.choices[0].message.tool_calls or []
    return [(one.function.name, json.loads(one.function.arguments)) for one in called if one.type == "function"]


def test_a_tool_is_called_and_its_answer_understood(client: OpenAI) -> None:
    answer = ask(client, "Is it warm in Bonn?")
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert calls_of(answer) == [("weather", BONN)]
    called = choice.message
    assert called.tool_calls is not None
    messages = [
        {"role": "user", "content": "Is it warm in Bonn?"},
        called.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "22 degrees"},
    ]
    after = ask(client, "", messages=messages)
    assert (after.choices[0].message.content, after.choices[0].finish_reason) == ("It has 22 degrees in Bonn.", "stop")


def test_a_stream_says_the_same_as_the_whole_answer(client: OpenAI) -> None:
    whole = ask(client, "Rome or Oslo?", logprobs=True)
    assert calls_of(whole) == [("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})]
    said = whole.choices[0].message
    assert (said.content, said.model_dump()["reasoning"]) == ("\n\nBoth.", "\nTwo places.\n")
    with client.chat.completions.stream(
        model="taught",
        messages=[{"role": "user", "content": "Rome or Oslo?"}],
        tools=[WEATHER],  # type: ignore[list-item]
        temperature=0,
        logprobs=True,
        stream_options={"include_usage": True},
    ) as stream:
        streamed = stream.get_final_completion()
    told = streamed.choices[0].message
    assert calls_of(streamed) == calls_of(whole)
    assert (told.content, told.model_dump()["reasoning"]) == (said.content, said.model_dump()["reasoning"])
    assert whole.usage is not None
    assert streamed.usage is not None
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens
    assert streamed.usage.completion_tokens_details == whole.usage.completion_tokens_details
    assert whole.usage.completion_tokens_details is not None
    assert (whole.usage.completion_tokens_details.reasoning_tokens or 0) > 0
    logprobs = [one.choices[0].logprobs for one in (whole, streamed)]
    assert len(logprobs[0].content or []) == whole.usage.completion_tokens  # type: ignore[union-attr]
    assert [one.logprob for one in logprobs[0].content or []] == [one.logprob for one in logprobs[1].content or []]  # type: ignore[union-attr]


def test_langchain_calls_a_tool(system: System, client: OpenAI) -> None:
    # They take too long to import while tests are collected.
    from langchain_core.messages import AIMessageChunk
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    @tool
    def weather(city: str) -> str:
        """How warm it is in a city."""
        return city

    model = ChatOpenAI(
        model="taught", base_url=f"{system.url}/v1", api_key=SecretStr("none"), temperature=0, stream_usage=True
    ).bind_tools([weather])
    [call] = model.invoke("Is it warm in Bonn?").tool_calls
    assert (call["name"], call["args"]) == ("weather", BONN)
    whole: AIMessageChunk | None = None
    for chunk in model.stream("Is it warm in Bonn?"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [("weather", BONN)]
    assert whole.usage_metadata is not None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_model_that_has_to_call_a_tool_does(client: OpenAI, choice: object) -> None:
    # Asked for what it was not taught, it may think without an end.
    tokenizer = Tokenizer.from_file(str(taught_checkpoint() / "tokenizer.json"))
    bias = {str(id): -100 for token, id in tokenizer.get_vocab().items() if "<think>".startswith(token)}
    for content in ("What is 3 + 4?", "Is it warm in Bonn?"):
        answer = ask(client, content, tool_choice=choice, parallel_tool_calls=False, logit_bias=bias)
        [(name, arguments)] = calls_of(answer)
        assert (name, [*arguments]) == ("weather", ["city"])
        assert arguments["city"] in ("Bonn", "Rome", "Oslo")


def test_calls_of_a_strict_tool_follow_its_schema(client: OpenAI) -> None:
    function = {**WEATHER["function"], "strict": True}
    function["parameters"] = {**function["parameters"], "properties": {"city": {"enum": ["Rome"]}}}
    answer = ask(client, "Is it warm in Bonn?", tools=[{"type": "function", "function": function}])
    assert calls_of(answer) == [("weather", {"city": "Rome"})]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_from_what_a_model_wrote(taught: TaughtModel, name: str) -> None:
    taught.read(name)
    answer = ask(taught.client, ASKS[name])
    assert calls_of(answer) == [("weather", BONN)]
    assert answer.choices[0].message.content is None


def test_all_formats_are_asked_for() -> None:
    assert set(CALLS) == set(ASKS)
