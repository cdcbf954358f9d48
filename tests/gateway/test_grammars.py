"""Clients' grammars: what can be met passes, anything else is refused by name, and in time."""

import asyncio
import os
import signal
import time

import msgspec
import pytest

from livescale.services.gateway.bodies import CompletionRequest
from livescale.services.gateway.constraints import Constraint, constraint_of
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.grammars import Grammars
from livescale.services.gateway.parse import parse_body
from tests.gateway.conftest import ServedGateway

# 12 to the power of 12 ways to meet it.
BOMB = {
    "allOf": [
        {"anyOf": [{"properties": {f"{part}-{way}": {"type": "string"}}} for way in range(12)]} for part in range(12)
    ]
}


def bomb(**more: str) -> Constraint:
    return Constraint("guided_json", "json", msgspec.json.encode({**BOMB, **more}).decode())


async def refusal(grammars: Grammars, **fields: object) -> tuple[str | None, str]:
    body = parse_body(msgspec.json.encode({"prompt": "a", **fields}), CompletionRequest)
    constraint = constraint_of(body)
    assert constraint is not None
    with pytest.raises(ApiError) as caught:
        await grammars.check(constraint)
    return caught.value.detail.param, caught.value.detail.message


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}},
        {"guided_json": {"type": "string", "enum": [1]}},
        {"guided_json": {"$ref": "#/nowhere"}},
        {"guided_regex": "(a"},
        {"guided_grammar": 'start: "a" start'},
        {"guided_grammar": "start: other"},
        {"guided_grammar": "root ::= other"},
    ],
)
async def test_what_cannot_be_met_is_refused_by_name(fields: dict[str, object]) -> None:
    async with Grammars() as grammars:
        assert (await refusal(grammars, **fields))[0] == next(iter(fields))


async def test_a_bomb_is_refused_in_time() -> None:
    async with Grammars() as grammars:
        begun = time.monotonic()
        param, _ = await refusal(grammars, guided_json=BOMB)
        assert param == "guided_json"
        assert time.monotonic() - begun < 60  # a third of a second of processor time, on a busy machine


async def test_one_that_takes_too_long_is_ended_and_others_are_tried_after_it() -> None:
    async with Grammars(processor_seconds=0.02) as grammars:  # the first takes several times this, the second a tenth
        wide = {"properties": {f"p{number}": {"type": "string", "pattern": f"a{number}.*"} for number in range(1_000)}}
        param, message = await refusal(grammars, guided_json=wide)
        assert param == "guided_json"
        assert "processor" in message
        assert "a+" in await grammars.check(constraint_regex("a+"))


async def test_what_repeats_a_million_times_is_refused_for_that_and_not_for_its_time() -> None:
    async with Grammars(processor_seconds=0.6) as grammars:  # it takes a fifth of this, and took twice as much
        param, message = await refusal(grammars, guided_regex="(a{1000}){1000}")
        assert (param, "processor" in message) == ("guided_regex", False)


async def test_a_grammar_that_is_known_waits_for_no_other() -> None:
    async with Grammars() as grammars:
        known = await grammars.check(constraint_regex("a+"))
        async with grammars._turn, asyncio.timeout(60):
            assert await grammars.check(constraint_regex("a+")) == known


async def test_a_process_that_died_of_something_else_condemns_no_grammar() -> None:
    async with Grammars() as grammars:
        await grammars.check(constraint_regex("a+"))
        process = grammars._process._process
        assert process is not None
        os.killpg(process.pid, signal.SIGSTOP)  # with its child, which would answer
        trial = asyncio.create_task(grammars.check(constraint_regex("b+")))
        await asyncio.sleep(0.05)  # until the stopped process has been asked, which nothing shows
        os.killpg(process.pid, signal.SIGKILL)
        with pytest.raises(ApiError):
            await trial
        assert "b+" in await grammars.check(constraint_regex("b+"))


def constraint_regex(pattern: str) -> Constraint:
    constraint = constraint_of(CompletionRequest(prompt="a", guided_regex=pattern))
    assert constraint is not None
    return constraint


async def test_requests_at_once_are_tried_one_after_the_other() -> None:
    async with Grammars() as grammars:
        patterns = [f"a{{{number}}}" for number in range(1, 9)]
        made = await asyncio.gather(*(grammars.check(constraint_regex(one)) for one in patterns))
        assert all(pattern in grammar for pattern, grammar in zip(patterns, made, strict=True))


async def test_a_form_goes_to_the_worker_as_one_grammar_for_all_choices(served: ServedGateway) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "n": 2}
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": {"type": "integer"}}}
    status, _ = await served.post("/v1/chat/completions", {**asked, "response_format": form})
    assert status == 200
    grammars = [submit.sampling.grammar for submit in served.cluster.submitted]
    assert len(grammars) == 2
    assert len(set(grammars)) == 1
    assert '"type":"integer"' in grammars[0]


async def test_a_form_that_cannot_be_met_reaches_no_worker(served: ServedGateway) -> None:
    asked = {"model": "tiny", "prompt": "a", "guided_json": {"type": "integer", "minimum": 5, "maximum": 3}}
    status, answer = await served.post("/v1/completions", asked)
    assert (status, answer["error"]["param"]) == (400, "guided_json")
    status, answer = await served.post("/v1/completions", {**asked, "guided_json": {}, "min_tokens": 1})
    assert (status, answer["error"]["param"]) == (400, "min_tokens")
    assert not served.cluster.submitted


async def test_many_grammars_of_one_client_do_not_hold_up_another_ones() -> None:
    bombs = [bomb(title=str(number)) for number in range(8)]
    async with Grammars(processor_seconds=0.1) as grammars:
        tried = [asyncio.create_task(grammars.check(one, "alice")) for one in bombs]
        await asyncio.sleep(0)
        await grammars.check(Constraint("guided_regex", "regex", "a+"), "bob")
        assert sum(one.done() for one in tried) <= 1
        for one in tried:
            one.cancel()
        await asyncio.gather(*tried, return_exceptions=True)


async def test_a_grammar_that_waits_too_long_is_refused_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.gateway.grammars.WAIT_SECONDS", 0.05)
    async with Grammars() as grammars:
        slow = asyncio.create_task(grammars.check(bomb()))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await grammars.check(Constraint("guided_regex", "regex", "a+"), "bob")
        assert (refused.value.status, refused.value.retry_after_ms) == (503, 1_000)
        await asyncio.gather(slow, return_exceptions=True)
