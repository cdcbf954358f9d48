"""A request's logits have the same bits whatever it is batched with, however it is cut, wherever it resumes."""

import random
from collections.abc import Iterator

import pytest
import torch
from _pytest.mark import ParameterSet

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, PROMPT_CUT, ScheduledChunk
from livescale.shared.messages.requests import Sampling
from tests.worker.engine.configs import CONFIGS
from tests.worker.engine.models import KINDS, Kind
from tests.worker.requests import mixed_requests, random_prompt, submit
from tests.worker.serving import serve, serve_each

# Of torch's kernels each type is in the suite with one shape, and with the others among the slow ones: they take ten
# times as long as ours, and are the same for all families.
TORCH_CONFIGS = {"float32": "qwen2-tied", "bfloat16": "llama3-scaled-tied"}


def each_way(*names: str) -> Iterator[ParameterSet]:
    """Each of these models with every way to compute."""
    for way in KINDS:
        for name in names:
            [kind] = way.values
            assert isinstance(kind, Kind)
            long = "torch" in str(way.id) and name != TORCH_CONFIGS[kind.dtype]
            marks = [*way.marks, *([pytest.mark.slow] if long else [])]
            yield pytest.param(name, *way.values, marks=marks, id=f"{name}-{way.id}")


LENGTHS = (1, 2, 3, 4, 17, 64, 127, 128, 129, 200, 255, 257, 400, 900)  # every other one for torch's kernels


@pytest.mark.parametrize(("name", "kind"), [*each_way(*CONFIGS)])
def test_batch_composition_changes_no_bit(name: str, kind: Kind) -> None:
    engine = kind.engine(name)
    requests = mixed_requests(LENGTHS if kind.kernels else LENGTHS[1::2])
    alone = serve_each(engine, requests)
    for seed in range(2):
        chance = random.Random(seed)
        arrivals = [(chance.randrange(30), request) for request in chance.sample(requests, len(requests))]
        rows = chance.choice((144, 200, 512, 2_048))
        together = serve(
            engine,
            arrivals,
            spans=chance.randint(1, 2),
            max_num_seqs=chance.randint(1, 16),
            max_num_batched_tokens=rows,
        )
        for key, served in alone.items():
            assert together.tokens[key] == served.tokens[key]
            assert torch.equal(together.rows(key), served.rows(key)), (key, seed)


@pytest.mark.parametrize(("name", "kind"), [*each_way(*CONFIGS)])
def test_a_resumed_request_continues_with_the_same_bits(name: str, kind: Kind) -> None:
    whole = submit("whole", random_prompt(9, 150), max_tokens=60, sampling=Sampling(temperature=0.8, seed=4))
    engine = kind.engine(name)
    uninterrupted = serve(engine, [(0, whole)])
    tokens = uninterrupted.tokens["whole"]
    resumed = [
        (
            chance,
            submit(f"from-{known}", whole.prompt, generated=tokens[:known], max_tokens=60, sampling=whole.sampling),
        )
        for chance, known in enumerate((1, 2, 5, 30, 59))
    ]
    again = serve(engine, resumed, max_num_batched_tokens=150)
    for _, request in resumed:
        known = len(request.generated)
        assert again.tokens[request.request_id] == tokens[known:]
        assert torch.equal(again.rows(request.request_id), uninterrupted.rows("whole")[known:])


@pytest.mark.parametrize(("name", "kind"), [*each_way("llama3-scaled-tied", "qwen2-untied")])
def test_a_request_that_is_preempted_and_computed_again_continues_with_the_same_bits(name: str, kind: Kind) -> None:
    engine = kind.engine(name, kv_tokens=224 if kind.dtype == "float32" else 112)
    requests = [
        submit(
            f"r{length}",
            random_prompt(length, length),
            max_tokens=80,
            sampling=Sampling(temperature=0.0 if length % 2 else 0.9, seed=length),
        )
        for length in (5, 18, 33, 40, 61, 130)
    ]
    alone = serve_each(engine, requests)
    together = serve(engine, [(0, request) for request in requests])
    assert together.preempted >= 4
    for key, served in alone.items():
        assert served.preempted == 0
        assert together.tokens[key] == served.tokens[key]
        assert torch.equal(together.rows(key), served.rows(key)), key


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_2000_tokens_has_the_same_bits_in_a_crowd(kind: Kind) -> None:
    engine = kind.engine("qwen2-tied")
    long = submit("long", random_prompt(2, 2_000), max_tokens=6)
    alone = serve(engine, [(0, long)], max_num_batched_tokens=2_048)
    crowd = [(step, submit(f"c{step}", random_prompt(step, 30 * step + 1), max_tokens=20)) for step in range(9)]
    together = serve(engine, [*crowd, (3, long)], max_num_batched_tokens=160)
    assert torch.equal(together.rows("long"), alone.rows("long"))


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_compute_the_same_bits(kind: Kind) -> None:
    request = submit("a", random_prompt(8, 140), max_tokens=12)
    one, other = (serve(kind.engine("qwen2-untied"), [(0, request)]) for _ in range(2))
    assert torch.equal(one.rows("a"), other.rows("a"))


@pytest.fixture
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("kind", KINDS)
def test_batch_composition_changes_no_bit_on_two_threads(kind: Kind) -> None:
    engine = kind.engine("llama2-untied")
    requests = mixed_requests(LENGTHS[4::3])
    alone = serve_each(engine, requests)
    together = serve(engine, [(0, request) for request in requests])
    for key, served in alone.items():
        assert torch.equal(together.rows(key), served.rows(key)), key


@pytest.mark.parametrize(("name", "kind"), [*each_way(*CONFIGS)])
def test_where_a_prompt_is_cut_changes_no_bit(name: str, kind: Kind) -> None:
    engine, prompt = kind.engine(name), tuple(random_prompt(6, 700))
    whole = _cut(engine, prompt, [PREFILL_CHUNK] * 6)
    for seed in range(2):
        chance = random.Random(seed)
        cuts = [PROMPT_CUT * chance.randint(1, 16) for _ in range(len(prompt) // PROMPT_CUT + 1)]
        assert torch.equal(_cut(engine, prompt, cuts), whole), seed


def _cut(engine: TorchEngine, prompt: tuple[int, ...], cuts: list[int]) -> torch.Tensor:
    """A prompt in chunks of so many rows, each in a step of its own: what comes out of the last layer, `[position,
    hidden]`."""
    hidden, start = [], 0
    for rows in cuts:
        tokens = prompt[start : start + rows]
        if tokens:
            step = engine.rows([ScheduledChunk("cut", tokens, start, range(64), decode=False)])
            hidden.append(engine.layers(0, len(engine.store.cache), engine.embed(step), step))
        start += rows
    return torch.cat(hidden)
