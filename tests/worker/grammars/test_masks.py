"""Masks of tokens, by the process that computes them."""

import os
import random
import signal
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import llguidance
import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from livescale.services.worker.grammars import masks as module
from livescale.services.worker.grammars.mask_computer import MasksFailed
from livescale.services.worker.grammars.masks import (
    LATER,
    NEVER,
    TOO_LARGE,
    TOO_SLOW,
    Masks,
    StepMasks,
    Vocabulary,
    without_masks,
)
from livescale.services.worker.scheduling.batch import Past, ScheduledChunk, TokenSampling, Withheld
from livescale.shared.messages.requests import Sampling
from tests.checkpoints import tiny_checkpoint

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9999}}, "required": ["a"]}
GRAMMAR = llguidance.LLMatcher.grammar_from_json_schema({**SCHEMA, "additionalProperties": False})
VOCAB_SIZE = 1_019  # of the tiny checkpoint
END = 1


def tokenizer_json() -> bytes:
    return (tiny_checkpoint("llama") / "tokenizer.json").read_bytes()


@pytest.fixture(scope="module")
def masks() -> Iterator[Masks]:
    made = Masks(Vocabulary(zlib.compress(tokenizer_json()), (END,)), VOCAB_SIZE)
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
        if LATER not in step.withheld.values():
            return step
        assert time.monotonic() < until
        time.sleep(0.01)


def computed(masks: Masks, request_id: str) -> None:
    """Wait until a request's first mask is there, before any step asks for it."""
    masks.begin(request_id, GRAMMAR, [])
    until = time.monotonic() + 30
    while not masks.is_done(request_id):
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
    tokenizer = Tokenizer.from_buffer(tokenizer_json())
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
    assert "cannot be followed" in step.withheld[0].reason
    assert list(step.masks) == [1]


@contextmanager
def stopped(masks: Masks) -> Iterator[int]:
    """Let the process of masks compute nothing; its id."""
    pid = masks._computer.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_late_mask_is_withheld_and_no_other_one(masks: Masks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LATE_SECONDS", 0.0)
    computed(masks, "in time")
    both = chunk([], "in time"), chunk([], "late")
    with stopped(masks):
        for _ in range(2):
            masks.begin_step(both)
            step = masks.take_step(both)
            assert list(step.masks) == [0]
            assert step.withheld == {1: LATER}, "a machine that stood still took nothing of a processor"
    step = taken(masks, *both)
    assert list(step.masks) == [0]
    assert step.withheld == {1: TOO_SLOW}


def test_what_late_masks_take_of_a_processor_is_added_up(masks: Masks, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = written(masks, "reference", random.Random(8))
    spent = 0.0
    for count in range(2):
        with stopped(masks):
            masks.begin_step([chunk(answer[:count], "sum")])
            assert masks.take_step([chunk(answer[:count], "sum")]).withheld == {0: LATER}
        assert not taken(masks, chunk(answer[:count], "sum")).withheld
        spent += masks._shared.seconds(masks._requests["sum"].slot)
    assert masks._requests["sum"].late_seconds == spent > 0.0
    assert permitted(masks, chunk(answer[:2], "sum")) == permitted(masks, chunk(answer[:2], "reference"))
    monkeypatch.setattr(module, "MOST_LATE_SECONDS", spent / 2)
    assert taken(masks, chunk(answer[:3], "sum")).withheld == {0: TOO_SLOW}


@pytest.fixture
def own_masks() -> Iterator[Masks]:
    made = Masks(Vocabulary(zlib.compress(tokenizer_json()), (END,)), VOCAB_SIZE)
    made.start()
    yield made
    made.close()


def at_work(masks: Masks, request_id: str, begun: float) -> None:
    """Have it look as if the process computed a mask of the request since it had used so much of a processor."""
    followed, pid = masks._requests[request_id], masks._computer.pid
    assert pid is not None
    masks._shared.begin(followed.slot, followed.number, pid, begun)


def test_a_mask_that_is_computed_for_ever_ends_its_request_and_no_other_one(own_masks: Masks) -> None:
    both = chunk([], "endless"), chunk([], "waits")
    with stopped(own_masks) as pid:
        own_masks.begin_step(both)
        at_work(own_masks, "endless", -0.5)
        assert own_masks.take_step(both).withheld == {0: LATER, 1: LATER}
        at_work(own_masks, "endless", -2.0)
        assert own_masks.is_done("endless")
        assert not own_masks.is_done("waits")
        assert own_masks.take_step(both).withheld == {0: TOO_SLOW, 1: LATER}
    assert taken(own_masks, *both).withheld == {0: TOO_SLOW}
    assert own_masks._computer.pid != pid


def test_a_process_that_died_is_started_again_and_told_everything(own_masks: Masks) -> None:
    answer = written(own_masks, "a", random.Random(5))
    expected = permitted(own_masks, chunk(answer[:3], "b"))
    assert own_masks._computer.pid is not None
    os.kill(own_masks._computer.pid, signal.SIGKILL)
    assert permitted(own_masks, chunk(answer[:3], "c")) == expected
    assert permitted(own_masks, chunk(answer[:3], "b")) == expected


def test_a_request_of_which_the_process_died_twice_ends_and_no_other_one(own_masks: Masks) -> None:
    for index in range(2):
        with stopped(own_masks) as pid:
            own_masks.begin("large", GRAMMAR, [])
            own_masks.begin("waits", GRAMMAR, [])
            at_work(own_masks, "large", 0.0)
            os.kill(pid, signal.SIGKILL)
        assert not taken(own_masks, chunk([], f"after {index}")).withheld
    both = chunk([], "large"), chunk([], "waits")
    assert not taken(own_masks, both[1]).withheld
    assert taken(own_masks, *both).withheld == {0: TOO_LARGE}


def test_a_slot_comes_back_though_the_process_died_of_its_request(own_masks: Masks) -> None:
    del own_masks._free[1:]
    with stopped(own_masks) as pid:
        own_masks.begin("a", GRAMMAR, [])
        own_masks.forget("a")
        os.kill(pid, signal.SIGKILL)
    assert permitted(own_masks, chunk([], "b"))


def test_what_is_no_tokenizer_cannot_be_used_and_requests_that_need_it_end() -> None:
    made = Masks(Vocabulary(zlib.compress(b"{}"), (END,)), VOCAB_SIZE)
    assert (made.take_step([chunk([])]).withheld, made.is_done("a")) == ({0: LATER}, False), "it may still start"
    with pytest.raises(MasksFailed) as failed:
        made.start()
    made.close()
    made.begin_step([chunk([])])
    assert made.take_step([chunk([])]).withheld == {0: Withheld(f"{NEVER} {failed.value}.", code=503)}
    assert made.is_done("a")


def test_without_a_vocabulary_only_rows_with_a_grammar_have_to_wait() -> None:
    free = ScheduledChunk("free", (1,), 0, range(1), True, TokenSampling(Sampling(), 0))
    assert without_masks([free, chunk([])]).withheld == {1: LATER}
