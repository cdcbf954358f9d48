"""Masks of tokens, by the process that computes them."""

import os
import random
import signal
import time
import zlib
from collections.abc import Iterator

import llguidance
import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from livescale.services.worker.grammars import masks as module
from livescale.services.worker.grammars.masks import Masks, MasksFailed, StepMasks, Vocabulary, without_masks
from livescale.services.worker.scheduling.batch import Past, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import Sampling
from tests.checkpoints import tiny_checkpoint

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9999}}, "required": ["a"]}
GRAMMAR = llguidance.LLMatcher.grammar_from_json_schema({**SCHEMA, "additionalProperties": False})
TOKENIZER = (tiny_checkpoint("llama") / "tokenizer.json").read_bytes()
VOCAB_SIZE = msgspec.json.decode((tiny_checkpoint("llama") / "config.json").read_bytes())["vocab_size"]
END = 1


@pytest.fixture(scope="module")
def masks() -> Iterator[Masks]:
    made = Masks(Vocabulary(zlib.compress(TOKENIZER), (END,)), VOCAB_SIZE)
    made.start()
    yield made
    made.close()


def chunk(generated: list[int], request_id: str = "a", grammar: str = GRAMMAR) -> ScheduledChunk:
    sampling = TokenSampling(Sampling(grammar=grammar), len(generated), past=Past((), tuple(generated)))
    return ScheduledChunk(request_id, (1,), 0, range(1), True, sampling)


def taken(masks: Masks, *chunks: ScheduledChunk) -> StepMasks:
    """The masks of a step, which is made again as long as some of them are late."""
    until = time.monotonic() + 30
    while True:
        masks.begin_step(chunks)
        step = masks.take_step(chunks)
        if "" not in step.withheld.values():
            return step
        assert time.monotonic() < until
        time.sleep(0.01)


def permitted(masks: Masks, one: ScheduledChunk) -> list[int]:
    step = taken(masks, one)
    assert not step.withheld, step
    bits = np.unpackbits(step.masks[0].view(np.uint8), count=VOCAB_SIZE, bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def written(masks: Masks, request_id: str, chance: random.Random) -> list[int]:
    """Tokens that are drawn among those that are permitted, to the end."""
    generated: list[int] = []
    while END not in generated:
        generated.append(chance.choice(permitted(masks, chunk(generated, request_id))))
    return generated


def test_an_answer_follows_its_grammar_and_then_must_end(masks: Masks) -> None:
    tokenizer = Tokenizer.from_buffer(TOKENIZER)
    for seed in range(3):
        *answer, _ = written(masks, f"r{seed}", random.Random(seed))
        assert -99_999_999 < msgspec.json.decode(tokenizer.decode(answer))["a"] <= 9999
        masks.forget(f"r{seed}")


def test_the_mask_is_that_of_the_tokens_wherever_they_were_generated(masks: Masks) -> None:
    answer = written(masks, "first", random.Random(4))
    for count in (0, 2, len(answer) - 1, 1):
        so_far = chunk(answer[:count], "first")
        assert permitted(masks, so_far) == permitted(masks, chunk(answer[:count], f"other {count}"))


def test_tokens_that_the_grammar_forbids_fail_this_request_alone(masks: Masks) -> None:
    step = taken(masks, chunk([5, 6, 7], "bad"), chunk([], "good"))
    assert step.withheld[0].startswith("its grammar failed")
    assert list(step.masks) == [1]


def test_a_late_mask_is_withheld_until_its_request_was_held_up_for_too_long(
    masks: Masks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LATE_SECONDS", 0.1)
    taken(masks, chunk([], "in time"))
    both = chunk([], "in time"), chunk([], "late")
    assert masks._process is not None
    masks._process.send_signal(signal.SIGSTOP)
    try:
        masks.begin_step(both)
        first = masks.take_step(both)
        assert list(first.masks) == [0]
        assert first.withheld == {1: ""}
        time.sleep(0.2)
        masks.begin_step(both)
        second = masks.take_step(both)
        assert list(second.masks) == [0]
        assert "held it up" in second.withheld[1]
    finally:
        masks._process.send_signal(signal.SIGCONT)
    assert not taken(masks, chunk([], "in time")).withheld


def test_a_process_that_died_is_started_again_and_told_everything() -> None:
    made = Masks(Vocabulary(zlib.compress(TOKENIZER), (END,)), VOCAB_SIZE)
    made.start()
    try:
        answer = written(made, "a", random.Random(5))
        expected = permitted(made, chunk(answer[:3], "b"))
        assert made._process is not None
        os.kill(made._process.pid, 9)
        assert permitted(made, chunk(answer[:3], "c")) == expected
        assert permitted(made, chunk(answer[:3], "b")) == expected
    finally:
        made.close()


def test_a_slot_comes_back_though_the_process_died_of_its_request() -> None:
    made = Masks(Vocabulary(zlib.compress(TOKENIZER), (END,)), VOCAB_SIZE)
    made.start()
    try:
        del made._free[1:]
        assert made._process is not None
        os.kill(made._process.pid, signal.SIGSTOP)
        made.begin("a", GRAMMAR, [])
        made.forget("a")
        os.kill(made._process.pid, signal.SIGKILL)
        assert permitted(made, chunk([], "b"))
    finally:
        made.close()


def test_what_is_no_tokenizer_cannot_be_used() -> None:
    made = Masks(Vocabulary(zlib.compress(b"{}"), (END,)), VOCAB_SIZE)
    with pytest.raises(MasksFailed):
        made.start()
    made.close()


def test_without_a_vocabulary_only_rows_with_a_grammar_have_to_wait() -> None:
    free = ScheduledChunk("free", (1,), 0, range(1), True, TokenSampling(Sampling(), 0))
    assert without_masks([free, chunk([])]).withheld == {1: ""}
