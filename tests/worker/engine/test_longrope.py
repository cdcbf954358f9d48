"""LongRoPE, of Phi-3 and Phi-4-mini: heads rotate by one set of factors in an instance for short contexts, and by
another one in all others."""

import pytest
import torch

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from tests.worker.engine.architectures import LONGROPE
from tests.worker.engine.models import KINDS, Kind, checkpointed, reference_logits
from tests.worker.requests import BLOCK_TOKENS, CONTEXT, mixed_requests, random_prompt, submit
from tests.worker.serving import serve, serve_each

NAME, ORIGINAL = "phi3-longrope", int(LONGROPE["original_max_position_embeddings"])
each_float = pytest.mark.parametrize("kind", [kind for kind in KINDS if "float32" in str(kind.id)])


@pytest.fixture
def engines(kind: Kind) -> dict[int, TorchEngine]:
    """Engines by the most tokens that a request has there."""
    model = checkpointed(NAME, kind.dtype)
    made: dict[int, TorchEngine] = {}
    for most in (ORIGINAL, ORIGINAL + 1, CONTEXT):
        engine = TorchEngine(model.manifest, allocate_kv_memory(1 << 23), BLOCK_TOKENS, most, kind.kernels)
        for index, block in enumerate(model.blocks):
            engine.add_block(index, memoryview(block))
        made[most] = engine
    return made


def gap(engine: TorchEngine, length: int) -> float:
    """How far logits after so many tokens are from those of transformers, in their deviation."""
    prompt = random_prompt(length, length)
    served = serve(engine, [(0, submit("a", prompt, max_tokens=8))])
    theirs = reference_logits(NAME, prompt, served.tokens["a"])
    return float((served.rows("a") - theirs).abs().max() / theirs.std())


@each_float
def test_each_length_has_the_logits_of_transformers_in_an_instance_for_it(engines: dict[int, TorchEngine]) -> None:
    assert max(gap(engines[ORIGINAL], length) for length in (5, 129, ORIGINAL - 8)) <= 1e-4
    assert max(gap(engines[CONTEXT], length) for length in (ORIGINAL + 1, 400, 900)) <= 1e-4


@each_float
def test_an_instance_for_long_contexts_rotates_alike_at_any_length(engines: dict[int, TorchEngine]) -> None:
    """So that prompts that begin alike may share what was computed. Transformers changes its mind at the length."""
    assert gap(engines[CONTEXT], 129) > 1e-2
    rows = [serve(engines[one], [(0, submit("a", random_prompt(1, 129)))]).rows("a") for one in (ORIGINAL + 1, CONTEXT)]
    assert torch.equal(*rows)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_composition_changes_no_bit(engines: dict[int, TorchEngine]) -> None:
    requests = mixed_requests((1, 3, 129, 240))
    alone = serve_each(engines[ORIGINAL], requests)
    together = serve(
        engines[ORIGINAL], [(0, request) for request in requests], max_num_seqs=4, max_num_batched_tokens=200
    )
    for key, served in alone.items():
        assert torch.equal(together.rows(key), served.rows(key)), key
