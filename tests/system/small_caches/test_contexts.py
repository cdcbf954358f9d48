"""Conversations by their `prompt_cache_key`, with everything real: each turn finds those before it where they ran."""

import asyncio
import random
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from livescale.load.engine_alone import undisturbed
from livescale.load.records import Ask
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import System
from tests.system.small_caches.conftest import WORKERS, small_system
from tests.system.under_load import ExpectedStreams, SystemUnderLoad

BLOCK = 16
TIMEOUT_SECONDS = 60.0
ANSWER = 30
IDLE_SECONDS = 0.5  # in which a worker computes an answer as a part of the next prompt
SHORT_SECONDS = 2.0


@pytest.fixture
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with small_system(tmp_path_factory, "--context-seconds", str(SHORT_SECONDS)) as running:
        yield running


class Talk:
    """A conversation, its client the official one. `asks` and `answers`: each turn, all token ids."""

    def __init__(self, system: System, seed: int, name: str | None = None) -> None:
        self.asks: list[Ask] = []
        self.answers: dict[int, list[int]] = {}
        self._system = system
        self._named = {} if name is None else {"prompt_cache_key": name}
        self._chance = random.Random(seed)
        self._tokens: list[int] = []

    @property
    def kept(self) -> int:
        """Return how many tokens of the next prompt are in whole blocks. The KV of the last token was never
        computed."""
        return max(len(self._tokens) - 1, 0) // BLOCK * BLOCK

    def turn(self, tokens: int) -> int:
        """One more turn of so many tokens; how many of the whole prompt were cached."""
        index, prompt = len(self.asks), [*self._tokens, *self._chance.choices(range(1_000), k=tokens)]
        with openai.OpenAI(base_url=f"{self._system.url}/v1", api_key="none", timeout=TIMEOUT_SECONDS) as client:
            answer = client.completions.create(
                model="m",
                prompt=prompt,
                max_tokens=ANSWER,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True, **self._named},
            )
        self.asks.append(Ask(index, 0.0, prompt, ANSWER))
        self.answers[index] = (answer.choices[0].model_extra or {})["token_ids"]
        self._tokens = [*prompt, *self.answers[index]]
        if self._named:
            time.sleep(IDLE_SECONDS)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    def check(self) -> None:
        """Check that every token is that of an engine that keeps nothing."""
        assert self.answers == asyncio.run(undisturbed(tiny_checkpoint("llama"), "float32", self.asks))


def crowd(system: System) -> None:
    """Send more prompts than the KV caches have room for, all different. Only a few run at once, as running requests go
    before kept contexts."""
    with ThreadPoolExecutor(WORKERS) as pool:
        talks = [Talk(system, seed) for seed in range(100, 112)]
        assert list(pool.map(lambda talk: talk.turn(500), talks)) == [0] * len(talks)


def generated(system: System) -> dict[str, float]:
    """Return the number of generated tokens by worker."""
    with urllib.request.urlopen(system.url + "/metrics/all", timeout=TIMEOUT_SECONDS) as answer:
        text = answer.read().decode()
    found = re.findall(r'^vllm:generation_tokens_total{[^}]*engine="([^"]+)"[^}]*} (\S+)$', text, re.MULTILINE)
    return {worker: float(count) for worker, count in found}


def answering(system: System, before: dict[str, float]) -> list[str]:
    """Return the workers that have generated tokens since."""
    return [worker for worker, count in generated(system).items() if count > before[worker]]


@pytest.mark.system
def test_each_turn_finds_the_turns_before_it_where_they_ran_and_others_do_not_drive_them_out(small: System) -> None:
    before, talk, unnamed = generated(small), Talk(small, 1, "talk"), Talk(small, 2)
    assert talk.turn(40) == 0
    assert talk.kept == 64
    for tokens in (9, 130):
        expected = talk.kept
        assert talk.turn(tokens) == expected
    assert len(answering(small, before)) == 1, "all turns are one worker's"
    unnamed.turn(200)
    crowd(small)
    expected = talk.kept
    assert (talk.turn(20), unnamed.turn(20)) == (expected, 0)
    talk.check()


@pytest.mark.system
@pytest.mark.slow
def test_a_conversation_goes_on_right_where_the_worker_that_has_it_dies(small: System) -> None:
    before, talk = generated(small), Talk(small, 3, "dies")
    loaded = SystemUnderLoad(small, ExpectedStreams("m", [], {}))
    loaded.rest(serving=WORKERS, spare=0)
    talk.turn(100)
    [worker] = answering(small, before)
    expected = talk.kept
    assert talk.turn(10) == expected
    loaded.kill(worker)
    assert talk.turn(10) == 0
    expected = talk.kept
    assert talk.turn(10) == expected, "who answered last has it now"
    talk.check()
    loaded.rest(serving=WORKERS, spare=0)


@pytest.mark.system
@pytest.mark.slow
def test_a_context_whose_seconds_are_over_is_driven_out(forgetful: System) -> None:
    talk = Talk(forgetful, 4, "over")
    talk.turn(100)
    time.sleep(SHORT_SECONDS)
    crowd(forgetful)
    assert talk.turn(10) == 0
    talk.check()
