"""Each architecture computes what transformers does, and a row's bits depend on its own tokens alone."""

import random
from collections.abc import Iterator

import pytest
import torch
from _pytest.mark import ParameterSet

from tests.worker.engine.architectures import architecture_names
from tests.worker.engine.models import KERNELS, KINDS, Kind, checkpointed, kept_logits
from tests.worker.engine.test_tensor_parallel import in_ranks, on_ranks
from tests.worker.requests import mixed_requests, random_prompt, submit
from tests.worker.serving import serve, serve_each, strays

PROMPTS = {str(length): random_prompt(length, length) for length in (5, 129, 400)}
LENGTHS = (1, 3, 127, 129, 145, 300)  # the last but one leaves the window as it is decoded
# Of torch's kernels these are in the suite and the others slow ones, as they take ten times as long as ours.
TORCH_TYPES = {"float32": "gemma2-small", "bfloat16": "olmo2-small"}


def each_way(dtype: str = "") -> Iterator[ParameterSet]:
    """Each architecture with every way to compute in this type."""
    for way in KINDS:
        for name in architecture_names():
            if dtype in str(way.id):
                [kind] = way.values
                assert isinstance(kind, Kind)
                long = "torch" in str(way.id) and name != TORCH_TYPES[kind.dtype]
                marks = [*way.marks, *([pytest.mark.slow] if long else [])]
                yield pytest.param(name, *way.values, marks=marks, id=f"{name}-{way.id}")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "float32" in str(kind.id)])
@pytest.mark.parametrize("name", architecture_names())
def test_logits_in_float32_are_those_of_transformers(name: str, kind: Kind) -> None:
    served = serve(kind.engine(name), ((0, submit(key, prompt, max_tokens=8)) for key, prompt in PROMPTS.items()))
    for key, prompt in PROMPTS.items():
        theirs = kept_logits(name, prompt, served.tokens[key])
        assert (served.rows(key) - theirs).abs().max() <= 1e-4 * theirs.std(), key


@pytest.mark.parametrize(("name", "kind"), [*each_way("bfloat16")])
def test_bfloat16_strays_from_float32_no_further_than_transformers_own(name: str, kind: Kind) -> None:
    served = serve(kind.engine(name), ((0, submit(key, prompt, max_tokens=8)) for key, prompt in PROMPTS.items()))
    ours, theirs = strays(name, PROMPTS, served)
    assert ours <= 1.5 * theirs


@pytest.mark.parametrize("name", architecture_names())
def test_two_ranks_are_right(name: str) -> None:
    requests = [submit(key, prompt, max_tokens=8) for key, prompt in PROMPTS.items()]
    arrivals = [(0, request) for request in requests]
    cut = checkpointed(name, "float32", 2)
    served = in_ranks(cut, 2, lambda engine: serve(engine, arrivals), KERNELS)[0]
    for key, prompt in PROMPTS.items():
        theirs = kept_logits(name, prompt, served.tokens[key])
        assert (served.rows(key) - theirs).abs().max() <= 1e-4 * theirs.std(), key


@pytest.mark.slow
@pytest.mark.parametrize("name", [name.replace("-small", "-four") for name in architecture_names()])
def test_four_ranks_are_right(name: str) -> None:
    """Heads of keys and experts are fewer than ranks in some of these, or cannot be dealt out evenly."""
    prompt = PROMPTS["400"]
    request = submit("a", prompt, max_tokens=6)
    served = on_ranks(name, "float32", 4, lambda engine: serve(engine, [(0, request)]))[0]
    theirs = kept_logits(name, prompt, served.tokens["a"])
    assert (served.rows("a") - theirs).abs().max() <= 1e-4 * theirs.std()


@pytest.mark.parametrize(("name", "kind"), [*each_way()])
def test_batch_composition_changes_no_bit(name: str, kind: Kind) -> None:
    engine, requests, chance = kind.engine(name), mixed_requests(LENGTHS, most=12), random.Random(3)
    alone = serve_each(engine, requests)
    arrivals = [(chance.randrange(9), request) for request in requests]
    together = serve(engine, arrivals, spans=2, max_num_seqs=4, max_num_batched_tokens=200)
    for key, served in alone.items():
        assert together.tokens[key] == served.tokens[key]
        assert torch.equal(together.rows(key), served.rows(key)), key
