"""Keys and values that are kept in fp8: right against transformers, and a row has the same bits in any company."""

from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import MOST_FP8, KvStore, allocate_kv_memory
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, ScheduledChunk, block_bytes
from livescale.shared.messages.parameters import Manifest
from tests.worker.engine.models import KINDS, Checkpointed, Kind, checkpointed, reference
from tests.worker.requests import BLOCK_TOKENS, mixed_requests, random_prompt, submit
from tests.worker.serving import serve, serve_each

NAME = "llama3-scaled-tied"


def in_fp8(manifest: Manifest) -> Manifest:
    return replace(manifest, config=replace(manifest.config, kv_cache_dtype="fp8"))


def engine_of(kind: Kind, name: str = NAME) -> TorchEngine:
    made = checkpointed(name, kind.dtype)
    return Checkpointed(in_fp8(made.manifest), made.blocks).engine(kernels=kind.kernels)


class RoundedCache(transformers.DynamicCache):
    """What transformers attends over, rounded to float8_e4m3fn where it is written."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *rest: Any, **named: Any) -> Any:
        rounded = (one.clamp(-MOST_FP8, MOST_FP8).to(torch.float8_e4m3fn) for one in (key_states, value_states))
        keys, values = (one.to(key_states.dtype) for one in rounded)
        return super().update(keys, values, *rest, **named)


def right_logits(name: str, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        given = torch.tensor([prompt + tokens[:-1]])
        logits: torch.Tensor = reference(name)(given, past_key_values=RoundedCache(), use_cache=True).logits[0]
    return logits[len(prompt) - 1 :]


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]])
@pytest.mark.parametrize("name", [NAME, "qwen2-untied"])
def test_logits_are_those_of_transformers_over_rounded_keys_and_values(name: str, kind: Kind) -> None:
    prompt = random_prompt(5, 24)
    served = serve(engine_of(kind, name), [(0, submit("a", prompt, max_tokens=8))])
    logits, rows = right_logits(name, prompt, served.tokens["a"]), served.rows("a")
    assert (rows - logits).abs().max() <= 1e-4 * logits.std()
    exact = serve(checkpointed(name, kind.dtype).engine(kernels=kind.kernels), [(0, submit("a", prompt, max_tokens=1))])
    assert (rows[0] - exact.rows("a")[0]).abs().max() > 1e-3 * logits.std()


@pytest.mark.parametrize("kind", KINDS)
def test_company_and_resuming_change_no_bit(kind: Kind) -> None:
    engine = engine_of(kind)
    requests = mixed_requests((1, 17, 127, 128, 129, 257, 400))
    alone = serve_each(engine, requests)
    together = serve(engine, [(0, one) for one in requests], max_num_batched_tokens=200)
    for key, served in alone.items():
        assert torch.equal(together.rows(key), served.rows(key)), key
    whole = submit("whole", random_prompt(9, 150), max_tokens=20)
    through = serve(engine, [(0, whole)])
    tokens = through.tokens["whole"]
    again = serve(engine, [(0, submit("from-7", whole.prompt, generated=tokens[:7], max_tokens=20))])
    assert torch.equal(again.rows("from-7"), through.rows("whole")[7:])


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_worker_exports_is_what_another_continues_from(kind: Kind) -> None:
    prompt, (one, other) = tuple(random_prompt(6, 200)), (engine_of(kind), engine_of(kind))
    whole, layers, blocks = _run(one, prompt, 0), range(one.store.layers), range(128 // BLOCK_TOKENS)
    kv = one.store.export_kv(blocks, layers)
    manifest = in_fp8(checkpointed(NAME, kind.dtype).manifest)
    assert len(kv) == len(blocks) * block_bytes(manifest, BLOCK_TOKENS)
    other.store.import_kv(blocks, layers, memoryview(bytearray(kv)))
    assert torch.equal(_run(other, prompt[128:], 128), whole[128:])


@torch.inference_mode()
def _run(engine: TorchEngine, tokens: tuple[int, ...], start: int) -> torch.Tensor:
    cuts = range(0, len(tokens), PREFILL_CHUNK)
    pieces = [(start + cut, tokens[cut : cut + PREFILL_CHUNK]) for cut in cuts]
    rows = engine.rows([ScheduledChunk("a", piece, first, range(32), decode=False) for first, piece in pieces])
    return engine.layers(0, engine.store.layers, engine.embed(rows), rows).clone()


def test_twice_as_many_tokens_have_room_as_in_bfloat16() -> None:
    manifest, memory = checkpointed(NAME).manifest, allocate_kv_memory(1 << 22)
    one, other = (KvStore(memory, made.config, "bfloat16", BLOCK_TOKENS) for made in (manifest, in_fp8(manifest)))
    assert other.blocks in (2 * one.blocks, 2 * one.blocks + 1)
