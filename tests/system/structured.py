"""Answers by a schema, asked of a running system before and while it is disturbed."""

import asyncio

import aiohttp
import jsonschema_rs
import msgspec

NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": -999, "maximum": 99_999}}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 60, "maxLength": 70},
        "sizes": {**NUMBERS, "minItems": 6, "maxItems": 8},
        "kind": {"enum": ["small", "large", None]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
COUNT = 6
BEGUN_TOKENS = 10


async def structured_answers(url: str, model: str = "m", begun: asyncio.Barrier | None = None) -> list[list[int]]:
    """The tokens of `COUNT` answers, each of which follows the schema. All wait for `begun` once, after some tokens."""
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(structured(url, model, number, begun)) for number in range(COUNT)]
    return [one.result() for one in asking]


async def structured(url: str, model: str, number: int, begun: asyncio.Barrier | None = None) -> list[int]:
    """The tokens of one answer."""
    body = {
        "model": model,
        "prompt": [7 + number] * (20 + 30 * number),
        "max_tokens": 400,
        "stream": True,
        "return_token_ids": True,
        "seed": number,
        "temperature": 0.9 if number else 0.0,
        "presence_penalty": 0.5 if number % 2 else 0.0,
        "response_format": FORMAT,
    }
    tokens, text, reason = list[int](), "", None
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = msgspec.json.decode(line[6:])
            assert "choices" in event, event
            choice = event["choices"][0]
            tokens += choice["token_ids"]
            text, reason = text + choice["text"], choice["finish_reason"]
            if begun is not None and len(tokens) >= BEGUN_TOKENS:
                await begun.wait()
                begun = None
    assert reason == "stop", (reason, text)
    jsonschema_rs.validate(SCHEMA, msgspec.json.decode(text))
    return tokens
