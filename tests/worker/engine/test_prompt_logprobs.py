"""Log-probabilities of prompts: those of transformers, and the same bits whatever runs beside and before."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from livescale.services.worker.engine.contract import StageResult
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.scheduling.batch import NO_BYTES
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.requests import PromptLogprobs, Submit, TokenLogprobs
from tests.worker.engine.models import checkpointed, reference_logits
from tests.worker.requests import limits, random_prompt, submit

MODEL = "qwen2-tied"
PROMPT = random_prompt(8, 300)
ASKED = submit("a", PROMPT, max_tokens=3, prompt_logprobs=PromptLogprobs(top=2))
Told = dict[str, list[TokenLogprobs]]


def told(engine: TorchEngine, arrivals: Iterable[Submit], cuts: Iterable[int] = (), **fields: int) -> Told:
    """Serve these; the model's blocks in parts that end at `cuts`. Returns what the rows of each say of its prompt."""
    scheduler = Scheduler(limits(kv_blocks=engine.store.blocks, **fields))
    scheduler.keep_prefixes()
    found: Told = {}
    waiting, edges = list(arrivals), [0, *cuts]
    while waiting or not scheduler.is_empty:
        if waiting:
            scheduler.add(waiting.pop(0))
        batch = scheduler.next_batch()
        assert batch is not None
        engine.lay_down(batch)
        passed = StageResult(NO_BYTES)
        for start, stop in pairwise(edges):
            passed = engine.run_blocks(range(start, stop), batch.chunks, memoryview(bytearray(passed.activation)))
        for output in scheduler.complete(batch, passed.chosen if cuts else engine.step(batch), 0.0):
            found.setdefault(output.row.request_id, []).extend(output.row.prompt_logprobs)
    return found


def test_they_are_those_of_transformers() -> None:
    [found] = told(checkpointed(MODEL, "float32").engine(), [ASKED]).values()
    expected = reference_logits(MODEL, PROMPT[:1], PROMPT[1:]).double().log_softmax(1)
    assert len(found) == len(PROMPT) - 1
    for one, token, row in zip(found, PROMPT[1:], expected, strict=True):
        assert one.chosen == pytest.approx(float(row[token]), abs=1e-4)
        assert [logprob for _, logprob in one.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
        assert one.rank >= 1
        assert (one.rank == 1) == (one.top[0][0] == token)


def test_they_do_not_depend_on_what_runs_beside_or_is_kept_of_the_prompt() -> None:
    model = checkpointed(MODEL, "bfloat16")
    alone = told(model.engine(), [ASKED])["a"]
    others = [submit(f"o{k}", random_prompt(k, 90 + k), max_tokens=20) for k in range(3)]
    same = submit("same", PROMPT, max_tokens=9)
    assert told(model.engine(), [same, *others, ASKED], max_num_batched_tokens=256)["a"] == alone


def test_they_are_the_same_where_the_layers_run_in_parts() -> None:
    model = checkpointed(MODEL, "bfloat16")
    assert told(model.engine(), [ASKED], (1, 2, len(model.blocks))) == told(model.engine(), [ASKED])


def test_a_worker_goes_on_with_what_another_has_told() -> None:
    scheduler = Scheduler(limits(max_num_batched_tokens=160))
    half = [TokenLogprobs(-1.0)] * 128
    moved = submit("a", PROMPT, prompt_logprobs=PromptLogprobs(top=0, told=half))
    scheduler.add(moved)
    sequence = scheduler.get("a")
    assert sequence is not None
    sequence.scored(128, [TokenLogprobs(-2.0)] * 5)
    asked = sequence.as_request().prompt_logprobs
    assert asked is not None
    assert [one.chosen for one in asked.told] == [-1.0] * 128 + [-2.0] * 5


def test_they_are_not_computed_again_after_the_first_token() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(submit("a", PROMPT, generated=[5], max_tokens=3, prompt_logprobs=PromptLogprobs()))
    batch = scheduler.next_batch()
    assert batch is not None
    assert [chunk.scoring for chunk in batch.chunks] == [None] * len(batch.chunks)
