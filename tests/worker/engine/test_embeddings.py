"""What is added to embeddings: positions from their offset on, and the types of two texts."""

from typing import Any

import torch
from msgspec.structs import replace

from livescale.services.worker.engine.embeddings import AddedEmbeddings
from livescale.services.worker.scheduling.batch import ScheduledChunk, TokenSampling
from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.messages.requests import Sampling
from livescale.shared.model.declaration.tensors import POSITIONS

HIDDEN, OFFSET, TYPES = 8, 2, 2
CONFIG = ModelConfig(
    family="bert",
    vocab_size=100,
    hidden_size=HIDDEN,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=4,
    rms_norm_eps=1e-12,
    rope_theta=1e4,
    max_position_embeddings=32,
    kinds=[LayerKind(norms_before=False, norms_sum=True)],
    encodes=True,
    position_offset=OFFSET,
    token_types=TYPES,
)
CHANCE = torch.Generator().manual_seed(1)
TENSORS: Any = {
    "model.embed_positions.weight": torch.randn(34, HIDDEN, generator=CHANCE),
    "model.embed_types.weight": torch.randn(TYPES, HIDDEN, generator=CHANCE),
    "model.embed_norm.weight": torch.randn(HIDDEN, generator=CHANCE),
    "model.embed_norm.bias": torch.randn(HIDDEN, generator=CHANCE),
}


def chunk(id: str, rows: int, second: int = 0) -> ScheduledChunk:
    sampling = TokenSampling(Sampling(pools=True, second=second), 0)
    return ScheduledChunk(id, (5,) * rows, 0, range(2), False, sampling, whole=True)


def expected(embeddings: torch.Tensor, types: list[int]) -> torch.Tensor:
    """The rows of one prompt, by the definition."""
    positions = TENSORS["model.embed_positions.weight"][OFFSET : OFFSET + len(types)]
    total = embeddings + positions + TENSORS["model.embed_types.weight"][types]
    weight, bias = TENSORS["model.embed_norm.weight"], TENSORS["model.embed_norm.bias"]
    return torch.nn.functional.layer_norm(total, (HIDDEN,), weight, bias, 1e-12)


def test_each_prompt_begins_at_the_first_position_and_the_second_text_has_the_second_type() -> None:
    rows = torch.randn(8, HIDDEN, generator=CHANCE)
    made = AddedEmbeddings(CONFIG, TENSORS, None).add_to(rows, [chunk("pair", 5, second=3), chunk("one", 3)])
    torch.testing.assert_close(made[:5], expected(rows[:5], [0, 0, 0, 1, 1]))
    torch.testing.assert_close(made[5:], expected(rows[5:], [0, 0, 0]))


def test_a_model_with_one_type_has_it_for_both_texts() -> None:
    tensors = {**TENSORS, "model.embed_types.weight": TENSORS["model.embed_types.weight"][:1]}
    rows = torch.randn(5, HIDDEN, generator=CHANCE)
    made = AddedEmbeddings(CONFIG, tensors, None).add_to(rows, [chunk("pair", 5, second=3)])
    torch.testing.assert_close(made, expected(rows, [0] * 5))


def test_a_row_has_the_same_bits_whatever_is_beside_it() -> None:
    rows, encoder = torch.randn(8, HIDDEN, generator=CHANCE), AddedEmbeddings(CONFIG, TENSORS, None)
    together = encoder.add_to(rows, [chunk("a", 5), chunk("b", 3)])
    assert torch.equal(together[5:], encoder.add_to(rows[5:], [chunk("b", 3)]))


def test_rows_of_a_decoder_have_the_positions_that_they_have_in_their_request() -> None:
    config = replace(CONFIG, kinds=[], encodes=False, token_types=0, layer_norms=True, learned_positions=True)
    table = TENSORS[POSITIONS]
    decoder = AddedEmbeddings(config, {POSITIONS: table}, None)
    rows = torch.randn(6, HIDDEN, generator=CHANCE)
    later = ScheduledChunk("prompt", (5,) * 4, 16, range(2), False)
    made = decoder.add_to(rows, [later, ScheduledChunk("decodes", (5,), 30, range(2), True), chunk("new", 1)])
    assert torch.equal(made, rows + table[[18, 19, 20, 21, 32, 2]])
