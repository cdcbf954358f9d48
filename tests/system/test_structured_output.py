"""Structured output by a whole system: what comes is what was asked for, whatever dies meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import jsonschema_rs
import msgspec
import pytest

from tests.system.conftest import System

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 40, "maxLength": 60},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 900}, "maxItems": 6},
        "kind": {"enum": ["small", "large", None]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


async def ask(url: str, **fields: object) -> tuple[int, Any]:
    body = {"model": "m", "prompt": "A thing:", "max_tokens": 200, "temperature": 0.9, "seed": 5, **fields}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/completions", json=body) as answer:
        return answer.status, await answer.json()


@pytest.mark.system
async def test_answers_have_the_form_that_was_asked_for(system: System) -> None:
    status, answer = await ask(system.url, response_format=FORMAT, n=3, logprobs=2, presence_penalty=0.5)
    assert status == 200, answer
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema_rs.validate(SCHEMA, msgspec.json.decode(choice["text"]))
    asked: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
        ({"guided_regex": "[a-c]{3}-[0-9]+!"}, lambda text: text.endswith("!") and text[3] == "-"),
        ({"guided_choice": ["yes", 'he said "no"']}, lambda text: text in ("yes", 'he said "no"')),
        ({"structured_outputs": {"grammar": 'root ::= "a" | "bc" root'}}, lambda text: text.endswith("a")),
    ]
    answers = await asyncio.gather(*(ask(system.url, **fields) for fields, _ in asked))
    for (status, answer), (fields, is_right) in zip(answers, asked, strict=True):
        assert status == 200, (fields, answer)
        assert is_right(answer["choices"][0]["text"]), (fields, answer)
