"""Adapters of a model that is cut for several ranks, each of which keeps its part of them."""

import pytest
import torch
from msgspec.structs import replace

from livescale.services.worker.engine.engine import TorchEngine
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Submit
from livescale.shared.model.adapter_shards import adapter_bytes
from tests.worker.engine.adapted import adapter, add, merged
from tests.worker.engine.configs import CUT_CONFIGS
from tests.worker.engine.models import KERNELS, checkpointed, needs_kernels, reference_logits
from tests.worker.engine.test_tensor_parallel import in_ranks, on_ranks
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import Served, serve, serve_each

PROMPTS = {str(length): random_prompt(length, length) for length in (5, 129, 300)}
HALF = ("q_proj", "v_proj", "down_proj")
NORMED = "olmo2-small"  # ranks share the norm of a row of queries
SHARED = "glm4_moe-small"  # and these the features of experts that all rows use


def requests(engine: TorchEngine, name: str, dtype: DType) -> list[Submit]:
    """The same prompts with no adapter, and with each of two."""
    uses = [
        None,
        add(engine, adapter(name, 1, dtype)),
        add(engine, adapter(name, 2, dtype, 3, matrices=HALF)),
    ]
    return [
        submit(f"{key}-{number}", prompt, max_tokens=4, adapter=use)
        for key, prompt in PROMPTS.items()
        for number, use in enumerate(uses)
    ]


def close(name: str, served: Served) -> None:
    """Check the first adapter's logits against transformers' with it merged."""
    for key, prompt in PROMPTS.items():
        own = f"{key}-1"
        base = reference_logits(name, prompt, served.tokens[own])
        with merged(name, 1):
            theirs = reference_logits(name, prompt, served.tokens[own])
        assert (served.rows(own) - theirs).abs().max() <= 1e-4 * theirs.std(), key
        assert (served.rows(own) - base).abs().max() > 0.1 * theirs.std()  # else the adapter proves nothing


@pytest.mark.parametrize(
    ("name", "shards"),
    [*((name, shards) for name in CUT_CONFIGS for shards in (2, 4)), (NORMED, 2), (NORMED, 6), (SHARED, 2)],
)
def test_logits_are_those_of_transformers_with_the_adapter_merged(name: str, shards: int) -> None:
    def work(engine: TorchEngine) -> Served:
        return serve(engine, [(0, request) for request in requests(engine, name, "float32")])

    close(name, on_ranks(name, "float32", shards, work)[0])


@needs_kernels
@pytest.mark.parametrize("name", CUT_CONFIGS)
def test_compiled_kernels_are_right_too(name: str) -> None:
    def work(engine: TorchEngine) -> Served:
        return serve(engine, [(0, request) for request in requests(engine, name, "float32")])

    close(name, in_ranks(checkpointed(name, "float32", 2), 2, work, KERNELS)[0])


# Each model and each type is computed by torch's kernels once: they take three times as long as ours.
@pytest.mark.parametrize(
    ("name", "dtype", "compiled"),
    [
        ("llama-cut-untied", "float32", False),
        ("qwen2-cut-tied", "bfloat16", False),
        *(
            pytest.param(name, dtype, True, marks=needs_kernels)
            for name in CUT_CONFIGS
            for dtype in ("float32", "bfloat16")
        ),
    ],
)
def test_batch_composition_changes_no_bit(name: str, dtype: DType, compiled: bool) -> None:
    def compare(engine: TorchEngine) -> None:
        asked = requests(engine, name, dtype)
        alone = serve_each(engine, asked)
        arrivals = [(order, request) for order, request in enumerate(reversed(asked))]
        together = serve(engine, arrivals, max_num_seqs=5, max_num_batched_tokens=144)
        for key, served in alone.items():
            assert together.tokens[key] == served.tokens[key]
            assert torch.equal(together.rows(key), served.rows(key)), key

    in_ranks(checkpointed(name, dtype, 2), 2, compare, KERNELS if compiled else None)


def test_rows_of_the_base_model_keep_their_bits() -> None:
    name = "llama-cut-untied"

    def compare(engine: TorchEngine) -> None:
        plain = [submit(key, prompt, max_tokens=4) for key, prompt in PROMPTS.items()]
        before = serve_each(engine, plain)
        others = [replace(one, request_id=f"other {one.request_id}") for one in requests(engine, name, "bfloat16")]
        beside = serve(engine, [(order % 3, one) for order, one in enumerate([*others, *plain])])
        for key, served in before.items():
            assert torch.equal(beside.rows(key), served.rows(key)), key

    on_ranks(name, "bfloat16", 2, compare)


def test_a_rank_keeps_its_part() -> None:
    name = "qwen2-cut-tied"
    made = adapter(name, 1, "float32")

    def kept(engine: TorchEngine) -> int:
        use = add(engine, made)
        return engine.adapters[use.version]

    assert on_ranks(name, "float32", 4, kept) == [adapter_bytes(made[0], 4)] * 4
    # Each keeps the whole of the smaller factors: in a model this small they weigh much.
    assert adapter_bytes(made[0], 4) < 0.7 * made[0].size_bytes
