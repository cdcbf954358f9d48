"""Adapters compute what peft's merged matrices do, in any batch, and leave the rows of the base model as they are."""

import random
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from livescale.services.worker.engine.contract import AdapterMissing
from livescale.shared.messages.requests import AdapterUse
from tests.worker.engine.adapted import adapter, add, merged
from tests.worker.engine.models import KINDS, Kind, checkpointed, reference_logits
from tests.worker.engine.test_architectures import each_way
from tests.worker.requests import mixed_requests, random_prompt, submit
from tests.worker.serving import serve, serve_each

PROMPTS = {str(length): random_prompt(length, length) for length in (5, 129, 400)}
FLOATS = [kind for kind in KINDS if "float32" in str(kind.id)]
NAME = "qwen2-untied"
HALF = ("q_proj", "v_proj", "down_proj")


def close(name: str, kind: Kind, rank: int = 8, **fields: Any) -> None:
    """Check logits in float32 against transformers' with the adapter merged."""
    engine = kind.engine(name)
    use = add(engine, adapter(name, 1, "float32", rank, **fields))
    requests = [submit(key, prompt, max_tokens=8, adapter=use) for key, prompt in PROMPTS.items()]
    served = serve(engine, [(0, request) for request in requests])
    alike = 0
    for key, prompt in PROMPTS.items():
        base = reference_logits(name, prompt, served.tokens[key])
        with merged(name, 1, rank, **fields):
            theirs = reference_logits(name, prompt, served.tokens[key])
        assert (served.rows(key) - theirs).abs().max() <= 1e-4 * theirs.std(), key
        alike += int((served.rows(key) - base).abs().max() <= 0.1 * theirs.std())
    assert not alike  # else the adapter proves nothing


ADAPTED = [way for way in each_way("float32") if not str(way.id).startswith("deepseek")]  # their adapters are refused


@pytest.mark.parametrize(("name", "kind"), ADAPTED)
def test_logits_are_those_of_transformers_with_the_adapter_merged(name: str, kind: Kind) -> None:
    close(name, kind)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    "fields",
    [{"rank": 1}, {"rank": 33}, {"matrices": HALF}, {"matrices": ("up_proj", "k_proj")}, {"use_rslora": True}],
    ids=str,
)
def test_any_rank_any_matrices_and_the_other_factor_are_right(fields: dict[str, Any], kind: Kind) -> None:
    close(NAME, kind, **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_composition_changes_no_bit(kind: Kind) -> None:
    engine, chance = kind.engine(NAME), random.Random(3)
    # Torch's kernels take ten times as long as ours, and compute each row by itself.
    requests = mixed_requests((1, 127, 129) if kind.kernels is None else (1, 3, 17, 127, 129, 300))
    without = serve_each(engine, requests)
    made = [adapter(NAME, 1, kind.dtype), adapter(NAME, 2, kind.dtype, 3), adapter(NAME, 3, kind.dtype, matrices=HALF)]
    uses = [None, *(add(engine, one) for one in made)]
    asked = [
        replace(request, request_id=f"{request.request_id}-{number}", adapter=use)
        for request in requests
        for number, use in enumerate(uses)
    ]
    alone = serve_each(engine, asked)
    for request in requests:
        base = alone[f"{request.request_id}-0"]
        rows = base.rows(f"{request.request_id}-0")
        assert torch.equal(rows, without[request.request_id].rows(request.request_id))
        for number in range(1, len(uses)):
            key = f"{request.request_id}-{number}"
            assert not torch.equal(alone[key].rows(key)[0], rows[0])
    for seed in range(2):
        arrivals = [(chance.randrange(20), request) for request in chance.sample(asked, len(asked))]
        together = serve(engine, arrivals, spans=1 + seed, max_num_seqs=9, max_num_batched_tokens=200)
        for key, served in alone.items():
            assert together.tokens[key] == served.tokens[key]
            assert torch.equal(together.rows(key), served.rows(key)), (key, seed)


def test_prompts_of_another_adapter_share_no_kv() -> None:
    engine, prompt = Kind("float32").engine(NAME), random_prompt(1, 100)
    uses = [None, *(add(engine, adapter(NAME, seed, "float32")) for seed in (1, 2))]
    asked = [submit(f"{number}", prompt, max_tokens=2, adapter=use) for number, use in enumerate([*uses, *uses])]
    served = serve(engine, [(10 * step, request) for step, request in enumerate(asked)])
    cached = [served.cached[request.request_id] for request in asked]
    assert cached[:3] == [0, 0, 0]
    assert all(count >= 64 for count in cached[3:])


def test_no_adapter_code_runs_where_no_row_has_one() -> None:
    engine = Kind("float32").engine(NAME)
    use = add(engine, adapter(NAME, 1, "float32"))
    serve(engine, [(0, submit("base", [1, 2, 3], max_tokens=3))])
    assert not engine._adapted
    serve(engine, [(0, submit("own", [1, 2, 3], max_tokens=3, adapter=use))])
    assert len(engine._adapted) == checkpointed(NAME).manifest.config.num_hidden_layers


def test_an_adapter_that_is_not_here_is_missed() -> None:
    engine = Kind("float32").engine(NAME)
    use = add(engine, adapter(NAME, 1, "float32"))
    engine.remove_adapter(use.version)
    engine.remove_adapter(use.version)
    with pytest.raises(AdapterMissing, match=use.version):
        serve(engine, [(0, submit("a", [1, 2], adapter=AdapterUse(name="x", version=use.version)))])


def test_an_adapter_of_another_model_is_refused() -> None:
    engine = Kind("float32").engine(NAME)
    with pytest.raises(ValueError, match="another model"):
        add(engine, adapter("qwen2-tied", 1, "float32"))
