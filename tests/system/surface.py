"""Streams of every kind of request that a gateway takes, asked of a running system and read to what must not change."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

LONG = {"type": "string", "minLength": 60, "maxLength": 70}
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"place": LONG, "why": LONG, "kind": {"enum": ["town", "sea", None]}},
    "required": ["place", "why", "kind"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "find", "parameters": PLACE, "strict": True}
NAMED = {"type": "function", "function": {"name": "find"}}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Where is it warm?"}], "return_token_ids": True}
PENALTIES = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
LIKELY = {"logprobs": True, "top_logprobs": 3}
FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}
COMPLETION: dict[str, Any] = {"prompt": [7] * 60, "logprobs": 3, "return_token_ids": True}
ENDLESS = {"ignore_eos": True, "max_tokens": 120}
WARM = {"temperature": 0.8, "seed": 3}

# What is asked for, and with how many choices.
ASKS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "choices": ("/v1/chat/completions", 4, {**CHAT, **LIKELY, **PENALTIES, **ENDLESS, **WARM, "n": 4}),
    "biases": (
        "/v1/completions",
        2,
        {**COMPLETION, **ENDLESS, **WARM, "n": 2, "logit_bias": {"9": 3, "40": -5}, "bad_words": ["a", "the"]},
    ),
    "likeliest": ("/v1/completions", 1, {**COMPLETION, **ENDLESS, "temperature": 0, "repetition_penalty": 1.3}),
    "form": ("/v1/chat/completions", 1, {**CHAT, **LIKELY, **WARM, "max_tokens": 600, "response_format": FORM}),
    "tool": (
        "/v1/chat/completions",
        1,
        {
            **CHAT,
            **LIKELY,
            **WARM,
            "max_tokens": 600,
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": NAMED,
        },
    ),
    "response": (
        "/v1/responses",
        1,
        {
            "input": "Where is it warm?",
            "max_output_tokens": 600,
            "temperature": 0,
            "text": {"format": {"type": "json_schema", "name": "place", "schema": PLACE, "strict": True}},
        },
    ),
    "response with a tool": (
        "/v1/responses",
        1,
        {
            "input": "Where is it warm?",
            "max_output_tokens": 600,
            "temperature": 0,
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": {"type": "function", "name": "find"},
        },
    ),
    "message": (
        "/v1/messages",
        1,
        {
            "messages": [{"role": "user", "content": "Where is it warm?"}],
            "max_tokens": 600,
            "temperature": 0,
            "tools": [{"name": "find", "input_schema": PLACE, "strict": True}],
            "tool_choice": {"type": "tool", "name": "find"},
        },
    ),
}
REQUESTS = sum(count for _, count, _ in ASKS.values())
BEGUN_EVENTS = 12
NAMES = ("id", "item_id", "call_id", "created", "created_at", "completed_at", "sequence_number")  # anew in each answer


@dataclass
class Told:
    """What a stream told: texts by where they belong, however they were cut, and all else in its order."""

    texts: dict[str, str] = field(default_factory=lambda: defaultdict(str))
    tokens: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    rest: list[Any] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> None:
        """Add an event of any of the endpoints."""
        assert "error" not in event, event
        if "choices" in event:
            for choice in event["choices"]:
                self._take_choice(choice)
        elif isinstance(event.get("delta"), str):  # of a response
            self.texts[f"{event['type']} {event['output_index']}"] += event["delta"]
            self.tokens[event["output_index"]] += event.get("logprobs") or []
        elif event["type"] == "content_block_delta":  # of a message
            kind = event["delta"].pop("type")
            self.texts[f"{kind} {event['index']}"] += "".join(event["delta"].values())
        elif event["type"] != "ping":
            self.rest.append(_lasting(event))

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index, delta = choice["index"], choice.get("delta") or {}
        self.texts[f"text {index}"] += choice.get("text") or delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            self.texts[f"name {index} {call['index']}"] += function.get("name") or ""
            self.texts[f"arguments {index} {call['index']}"] += function.get("arguments") or ""
        self.tokens[index] += choice.get("token_ids") or []
        logprobs = choice.get("logprobs") or {}
        self.tokens[100 + index] += logprobs.get("content") or [
            list(one)
            for one in zip(*(logprobs.get(name) or [] for name in ("token_logprobs", "top_logprobs")), strict=True)
        ]
        if choice["finish_reason"]:
            self.texts[f"reason {index}"] += choice["finish_reason"]


def _lasting(value: Any) -> Any:
    """An event without what every answer has anew, and without how much of a prompt came from a cache."""
    match value:
        case dict():
            kept = {name: _lasting(one) for name, one in value.items() if name not in NAMES and name != "usage"}
            return {**kept, "output_tokens": value["usage"]["output_tokens"]} if value.get("usage") else kept
        case list():
            return [_lasting(one) for one in value]
    return value


async def ask_all(url: str, model: str, begun: asyncio.Barrier | None = None) -> dict[str, Told]:
    """What is told of everything in `ASKS`, asked at once. All wait for `begun` after some events."""
    async with aiohttp.ClientSession(url) as session, asyncio.TaskGroup() as group:
        asking = {name: group.create_task(_ask(session, model, name, begun)) for name in ASKS}
    return {name: one.result() for name, one in asking.items()}


async def _ask(session: aiohttp.ClientSession, model: str, name: str, begun: asyncio.Barrier | None) -> Told:
    path, _, body = ASKS[name]
    told, count = Told(), 0
    async with session.post(path, json={**body, "model": model, "stream": True}) as answer:
        assert answer.status == 200, (name, await answer.text())
        async for event in _events(answer):
            told.take(event)
            count += 1
            if begun is not None and count == BEGUN_EVENTS:
                await begun.wait()
    assert count > BEGUN_EVENTS, (name, count)
    return told


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: {"):
            yield msgspec.json.decode(line[6:])
