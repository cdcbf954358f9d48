"""A KV cache that is too small for what is asked at once: nothing is refused that fits, and every token is right."""

import asyncio
import json
import random
import re
import urllib.error
import urllib.request
from typing import Any

import pytest

from livescale.load.engine_alone import undisturbed
from livescale.load.records import Ask
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import System
from tests.system.small_caches.conftest import ROOM
from tests.system.under_load import ExpectedStreams, SystemUnderLoad

TIMEOUT_SECONDS = 60.0

pytestmark = pytest.mark.system


def post(system: System, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(system.url + path, json.dumps({"model": "m", **body}).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def preemptions(system: System) -> float:
    with urllib.request.urlopen(system.url + "/metrics/all", timeout=TIMEOUT_SECONDS) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(r"^vllm:num_preemptions_total{[^}]*} (\S+)$", text, re.MULTILINE))


def test_many_long_streams_through_a_small_cache_are_whole_and_right(small: System) -> None:
    chance = random.Random(5)
    asks = [Ask(n, 0.0, chance.choices(range(1_000), k=40), 300, 0.8 * (n % 2), n) for n in range(14)]
    expected = asyncio.run(undisturbed(tiny_checkpoint("llama"), "float32", asks))
    loaded = SystemUnderLoad(small, ExpectedStreams("m", asks, expected))
    loaded.check("a full cache", asyncio.run(loaded.load()))
    assert preemptions(small) > 0


def test_a_chat_that_names_no_number_of_tokens_gets_what_the_cache_has_room_for(small: System) -> None:
    def messages(words: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "seven " * words}]

    few, more = (post(small, "/tokenize", {"messages": messages(words)})[1]["count"] for words in (100, 200))
    words = round((ROOM - 60 - few) / (more - few) * 100) + 100
    status, answer = post(small, "/v1/chat/completions", {"messages": messages(words), "ignore_eos": True})
    assert status == 200, answer
    assert answer["usage"]["total_tokens"] == ROOM
    assert answer["choices"][0]["finish_reason"] == "length"


def test_what_can_never_fit_is_refused_with_the_remedy(small: System) -> None:
    status, answer = post(small, "/v1/completions", {"prompt": [5] * 10, "max_tokens": ROOM})
    assert status == 400
    assert f"the largest instance has {ROOM}: shorten the prompt" in answer["error"]["message"]
