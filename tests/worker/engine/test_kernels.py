"""The compiled kernels against the same in float64; and of each row the same bits in any company."""

import math
from typing import cast

import pytest
import torch
from torch.nn.functional import silu

from services.worker.batch import Piece
from services.worker.engine.compiled_attention import CompiledAttention
from services.worker.engine.compiled_linear import CompiledLinear, matching_span
from services.worker.engine.kernels.contract import Kernels
from services.worker.engine.kv_store import KvStore, allocate_kv_memory
from services.worker.engine.norm import CompiledNorm, TorchNorm
from services.worker.engine.parameters import OneDnnLinear
from services.worker.engine.rope import RopeTable
from shared.messages.parameters import ModelConfig
from tests.worker.engine.models import BLOCK_TOKENS, KERNELS, needs_kernels

pytestmark = needs_kernels
POSITIONS = 640
HEADS = [(10, 5, 64), (7, 1, 10), (6, 2, 20), (4, 1, 128), (2, 2, 72)]
CPU = torch.device("cpu")


def config(query_heads: int, kv_heads: int, head_dim: int) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=query_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_position_embeddings=POSITIONS,
    )


class Model:
    """Attention of layer 1 over a cache that is full of noise, and the projections of every position of a request."""

    def __init__(self, query_heads: int, kv_heads: int, head_dim: int) -> None:
        assert KERNELS is not None
        shape = config(query_heads, kv_heads, head_dim)
        self.heads = query_heads, kv_heads, head_dim
        self.store = KvStore(allocate_kv_memory(1 << 23), shape, "bfloat16", BLOCK_TOKENS)
        generator = torch.Generator().manual_seed(head_dim)
        self.store.cache.copy_(torch.randn(self.store.cache.shape, generator=generator))
        self.rope = RopeTable(shape, POSITIONS, torch.bfloat16, CPU)
        self.attention = CompiledAttention(KERNELS, self.store, self.rope, query_heads // kv_heads, POSITIONS)
        features = (query_heads + 2 * kv_heads) * head_dim
        self.projected = torch.randn(POSITIONS, features, generator=generator).bfloat16()

    def attend(self, *pieces: Piece) -> torch.Tensor:
        """`[row, query_head * head_dim]`"""
        rows = torch.cat([self.projected[piece.start : piece.stop] for piece in pieces])
        return self.attention.over(pieces)(1, rows)[: len(rows)].clone()

    def right(self, start: int, stop: int) -> torch.Tensor:
        """The same in float64, of a request whose rows before `start` are in the cache from block 0 on."""
        query_heads, kv_heads, head_dim = self.heads
        heads = self.projected[start:stop].double().view(stop - start, -1, head_dim)[:, :query_heads]
        cosines, sines = self.rope.at(torch.arange(start, stop))
        turned = (heads * cosines + heads.roll(head_dim // 2, -1) * sines).transpose(0, 1)
        keys, values = self.store.cache[1, :, :, :stop].double().repeat_interleave(query_heads // kv_heads, 1)
        scores = turned @ keys.transpose(1, 2) / math.sqrt(head_dim)
        hidden = torch.ones(stop - start, stop, dtype=torch.bool).triu(start + 1)
        right: torch.Tensor = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values
        return right.transpose(0, 1).flatten(1)


def piece(start: int, stop: int, *, decode: bool, block: int = 0) -> Piece:
    blocks = range(block, block - -stop // BLOCK_TOKENS)
    return Piece("r", tuple(range(stop - start)), start, blocks, decode)


def prompt(stop: int, block: int = 0) -> list[Piece]:
    return [piece(start, min(start + 128, stop), decode=False, block=block) for start in range(0, stop, 128)]


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention_is_that_of_float64(heads: tuple[int, int, int]) -> None:
    model = Model(*heads)
    rows = model.attend(*prompt(601), piece(601, 607, decode=True))
    for start, stop in ((0, 128), (128, 256), (256, 384), (384, 512), (512, 601), (601, 607)):
        torch.testing.assert_close(rows[start:stop].double(), model.right(start, stop), atol=0.02, rtol=0.02)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_rows_bits_are_the_same_alone_and_in_company_wherever_its_keys_lie(heads: tuple[int, int, int]) -> None:
    model = Model(*heads)
    alone = [
        model.attend(one) for one in (*prompt(301), *(piece(row, row + 1, decode=True) for row in range(301, 307)))
    ]
    company = [piece(0, 1, decode=True, block=19), piece(0, 100, decode=False, block=20)]
    together = model.attend(*company, *prompt(301, block=33), piece(301, 307, decode=True, block=33))
    assert torch.equal(torch.cat(alone), together[101:])


def test_what_lies_behind_a_row_in_the_cache_is_not_read() -> None:
    model = Model(6, 2, 20)
    model.store.cache[:, :, :, 77:] = float("nan")
    rows = model.attend(*prompt(70), piece(70, 77, decode=True))
    assert torch.isfinite(rows).all()


@pytest.mark.parametrize("blocks", [range(3), range(600, 604), range(-1, 3)])
def test_pieces_that_the_cache_has_no_room_for_are_refused(blocks: range) -> None:
    model = Model(10, 5, 64)
    assert model.store.blocks < 600
    with pytest.raises(ValueError, match=r"positions 0 \.\. 50 are not in"):
        model.attention.over([Piece("r", tuple(range(50)), 0, blocks, False)])


def test_positions_beyond_the_tables_are_refused() -> None:
    with pytest.raises(ValueError, match=r"positions 640 \.\. 641 are not in"):
        Model(10, 5, 64).attention.over([piece(640, 641, decode=True)])


@pytest.mark.parametrize("size", [60, 64, 70, 800])
def test_normalisation_is_that_of_torch(size: int) -> None:
    assert KERNELS is not None
    generator = torch.Generator().manual_seed(size)
    hidden, weight = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((9, size), (size,)))
    ours = CompiledNorm(KERNELS, weight, 1e-5)(hidden)
    theirs = TorchNorm(weight.double(), 1e-5)(hidden.double())
    torch.testing.assert_close(ours.double(), theirs, atol=0.0, rtol=2**-8)
    assert torch.equal(CompiledNorm(KERNELS, weight, 1e-5)(hidden[4:5]), ours[4:5])


def test_numbers_that_are_missing_are_refused() -> None:
    assert KERNELS is not None
    with pytest.raises(TypeError, match="attend takes 14 numbers, not 1"):
        KERNELS.attend(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        KERNELS.scratch_floats("a", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (70, 131), (172, 512), (96, 640), (200, 1_024), (80, 2_336)])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_times_a_matrix_have_onednns_bits(outputs: int, inputs: int, bias: bool) -> None:
    """Less what they are rounded to, so that even the last bit of the sums shows."""
    assert KERNELS is not None
    generator = torch.Generator().manual_seed(inputs)
    tensors = {"m.weight": torch.randn(outputs, inputs, generator=generator).bfloat16()}
    if bias:
        tensors["m.bias"] = torch.randn(outputs, generator=generator).bfloat16()
    ours, theirs = CompiledLinear(KERNELS, tensors, "m"), OneDnnLinear(tensors, "m")
    assert matching_span(KERNELS, outputs, inputs) is not None
    for count in (4, 5, 6, 13, 66, 67, 140):
        rows = torch.randn(count, inputs, generator=generator).bfloat16()
        assert torch.equal(ours(rows), theirs(rows))
        rest = -theirs(rows)
        assert torch.equal(ours.plus(rows, rest), theirs.plus(rows, rest))


def test_a_kernel_that_sums_in_another_order_than_onednn_is_not_used() -> None:
    class Wrong:
        def multiply(self, *numbers: int) -> None:
            assert KERNELS is not None
            KERNELS.multiply(*numbers[:4], 32, *numbers[5:])  # type: ignore[call-arg]

    assert matching_span(cast(Kernels, Wrong()), 128, 1_024) is None


@pytest.mark.parametrize("size", [16, 43, 172])
def test_the_gate_is_that_of_float64(size: int) -> None:
    assert KERNELS is not None
    gate_up = (8 * torch.randn(5, 2 * size, generator=torch.Generator().manual_seed(size))).bfloat16()
    out = torch.empty(5, size, dtype=torch.bfloat16)
    KERNELS.silu_times(gate_up.data_ptr(), out.data_ptr(), 5, size)
    gate, up = gate_up.double().chunk(2, dim=1)
    torch.testing.assert_close(out.double(), silu(gate) * up, atol=1e-20, rtol=2**-8)
