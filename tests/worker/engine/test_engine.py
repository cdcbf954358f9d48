"""Steps of the engine: what they need, what they refuse, and a hand-off in the middle of the layers."""

import pytest
import torch

from livescale.services.worker.engine.contract import BlockMissing
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, PROMPT_CUT, Batch, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import Sampling
from tests.worker.engine.models import Checkpointed, checkpointed
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import serve

PROMPT = tuple(random_prompt(0, 20))


def llama() -> Checkpointed:
    return checkpointed("llama2-untied")


def tied() -> Checkpointed:
    return checkpointed("qwen2-tied")


def _chunk(tokens: tuple[int, ...] = PROMPT, start: int = 0, decode: bool = False) -> ScheduledChunk:
    return ScheduledChunk("a", tokens, start, range(0, 8), decode, TokenSampling(Sampling(), 0))


def test_no_layer_runs_before_its_block_was_added() -> None:
    engine = llama().empty_engine()
    rows = engine.rows([_chunk()])
    with pytest.raises(BlockMissing, match="block 0"):
        engine.embed(rows)
    engine.add_block(0, memoryview(llama().blocks[0]))
    engine.add_block(1, memoryview(llama().blocks[1]))
    hidden = engine.layers(0, 1, engine.embed(rows), rows)
    with pytest.raises(BlockMissing, match="layer 1: block 2"):
        engine.layers(0, 2, hidden, rows)
    with pytest.raises(BlockMissing, match="logits: block 3"):
        engine.head(hidden)


def test_a_tied_head_needs_the_embedding() -> None:
    engine = tied().empty_engine()
    last = len(tied().blocks) - 1
    engine.add_block(last, memoryview(tied().blocks[last]))
    with pytest.raises(BlockMissing, match="logits: block 0"):
        engine.head(torch.zeros(1, tied().manifest.config.hidden_size))


def test_blocks_may_be_added_in_any_order() -> None:
    engine = tied().empty_engine()
    for index in reversed(range(len(tied().blocks))):
        engine.add_block(index, memoryview(tied().blocks[index]))
    request = submit("a", PROMPT, max_tokens=4)
    assert serve(engine, [(0, request)]).tokens == serve(tied().engine(), [(0, request)]).tokens


def test_adding_blocks_leaves_their_bytes_as_they_are() -> None:
    before = [bytes(block) for block in tied().blocks]
    serve(tied().engine(), [(0, submit("a", PROMPT, max_tokens=4))])
    assert [bytes(block) for block in tied().blocks] == before


def test_a_block_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks 0 to 3, not 4"):
        llama().empty_engine().add_block(4, memoryview(llama().blocks[0]))


def test_a_buffer_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="layer-0"):
        llama().empty_engine().add_block(1, memoryview(llama().blocks[1])[:-1])


def test_kv_memory_that_holds_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="--kv-bytes is 4096"):
        TorchEngine(llama().manifest, allocate_kv_memory(4_096), 16, 100)


def test_a_batch_has_rows_and_not_too_many() -> None:
    engine = llama().engine()
    with pytest.raises(ValueError, match="not 0"):
        engine.rows([])
    with pytest.raises(ValueError, match="not 2176"):
        engine.rows([_chunk(tuple(range(PREFILL_CHUNK)))] * 17)


@pytest.mark.parametrize(("start", "count"), [(0, PREFILL_CHUNK + 1), (1, 2), (PROMPT_CUT - 1, 1), (0, 0)])
def test_a_prompt_is_cut_at_fixed_positions_only(start: int, count: int) -> None:
    with pytest.raises(ValueError, match="no chunk of a prompt: it begins at a multiple of 8"):
        _chunk(tuple(range(count)), start)


def test_a_step_without_draws_chooses_nothing() -> None:
    engine = llama().engine()
    assert engine.step(Batch(1, (ScheduledChunk("a", PROMPT, 0, range(8), decode=False),))).tokens == []


def test_layers_can_be_handed_over_in_the_middle() -> None:
    """Layer 0 here; activations and KV go to another worker, which runs the rest and decodes on."""
    here, there = llama().engine(), llama().engine()
    rows = here.rows([_chunk()])
    activations = here.layers(0, 1, here.embed(rows), rows)
    moved = ScheduledChunk("a", PROMPT, 0, range(40, 48), decode=False)
    there.store.import_kv(range(40, 48), range(0, 1), here.store.export_kv(range(0, 8), range(0, 1)))
    moved_rows = there.rows([moved])
    finished = there.layers(1, 2, activations.clone(), moved_rows)
    step = ScheduledChunk("a", (7,), len(PROMPT), moved.blocks, decode=True)
    decoded = _whole(there, step)
    whole = _whole(here, _chunk())
    assert torch.equal(there.head(finished), here.head(whole))
    assert torch.equal(decoded, _whole(here, _chunk((7,), len(PROMPT), decode=True)))


def _whole(engine: TorchEngine, chunk: ScheduledChunk) -> torch.Tensor:
    rows = engine.rows([chunk])
    return engine.layers(0, len(engine.store.cache), engine.embed(rows), rows)
