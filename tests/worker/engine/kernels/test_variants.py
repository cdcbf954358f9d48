"""The compiled kernels against the same in float64; and of each row the same bits in any company."""

import math
from array import array

import pytest
import torch
from torch.nn.functional import silu

from livescale.services.worker.engine.compiled_layer import CompiledAttention
from livescale.services.worker.engine.kernels.variants import TYPES, VARIANTS, Kernels
from livescale.services.worker.engine.kv_store import MOST_FP8, KvStore, allocate_kv_memory, numbers
from livescale.services.worker.engine.matrices import CompiledLinear
from livescale.services.worker.engine.norms import CompiledNorm, TorchNorm
from livescale.services.worker.engine.parameters import DTYPES
from livescale.services.worker.engine.rope import rope_tables
from livescale.services.worker.scheduling.batch import PROMPT_CUT, ScheduledChunk
from livescale.shared.messages.parameters import LLAMA_LAYER, KvCacheDType, LayerKind, ModelConfig
from tests.worker.engine.models import Kind, kind
from tests.worker.requests import BLOCK_TOKENS

POSITIONS = 640
BLOCKS = 64  # of the cache, so that requests of a test lie beside each other
HEADS = [(10, 5, 64), (7, 1, 10), (6, 2, 20), (4, 1, 128), (2, 2, 72), (3, 3, 16)]
CPU = torch.device("cpu")
WAYS = [kind("portable", "float32"), *(kind(variant, "bfloat16") for variant in VARIANTS)]
# How far numbers may be from those of float64.
ATTENTION = {torch.bfloat16: 0.02, torch.float32: 1e-5}
ROUNDED = {torch.bfloat16: 2**-8, torch.float32: 1e-6}

# What is compared at a time: all scores of a prompt at once would not fit into caches.
PARTS = ((0, 128), (128, 256), (256, 384), (384, 512), (512, 601), (601, 607))

every_way = pytest.mark.parametrize("way", WAYS)
however_kept = pytest.mark.parametrize("kept", ["auto", "fp8"])


def kernels_of(way: Kind) -> Kernels:
    assert way.kernels is not None
    return way.kernels


def dtype_of(way: Kind) -> torch.dtype:
    return torch.bfloat16 if way.dtype == "bfloat16" else torch.float32


def config(query_heads: int, kv_heads: int, head_dim: int, kept: KvCacheDType) -> ModelConfig:
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
        kv_cache_dtype=kept,
    )


def as_fp8(values: torch.Tensor) -> torch.Tensor:
    """The bits of float8_e4m3fn nearest to these numbers, as torch rounds them."""
    return values.clamp(-MOST_FP8, MOST_FP8).to(torch.float8_e4m3fn).view(torch.uint8)


class Model:
    """Attention of layer 1 over a cache that is full of noise, and the projections of every position of a request."""

    def __init__(
        self,
        way: Kind,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        kind: LayerKind = LLAMA_LAYER,
        kept: KvCacheDType = "auto",
    ) -> None:
        shape, dtype = config(query_heads, kv_heads, head_dim, kept), dtype_of(way)
        self.heads, self.kind = (query_heads, kv_heads, head_dim), kind
        block_bytes = 2 * shape.num_hidden_layers * kv_heads * head_dim * BLOCK_TOKENS * dtype.itemsize
        self.store = KvStore(allocate_kv_memory(BLOCKS * block_bytes), shape, way.dtype, BLOCK_TOKENS)
        generator = torch.Generator().manual_seed(head_dim)
        noise = torch.randn(self.store.cache.shape, generator=generator)
        self.store.cache.copy_(as_fp8(noise) if kept == "fp8" else noise)
        ropes = rope_tables(shape, POSITIONS, dtype, CPU, kernels_of(way))
        self.rope = ropes[0]
        self.attention = CompiledAttention(
            kernels_of(way), self.store, ropes, query_heads // kv_heads, POSITIONS, [kind] * 2
        )
        features = (query_heads + 2 * kv_heads) * head_dim
        self.projected = torch.randn(POSITIONS, features, generator=generator).to(dtype)

    def attend(self, *chunks: ScheduledChunk) -> torch.Tensor:
        """Attend, by the compiled kernels: `[row, query_head * head_dim]`."""
        rows = torch.cat([self.projected[chunk.start : chunk.stop] for chunk in chunks])
        return self.attention.over(chunks)(1, rows)[: len(rows)].clone()

    def right(self, start: int, stop: int) -> torch.Tensor:
        """The same in float64, of a request whose rows before `start` are in the cache from block 0 on."""
        query_heads, kv_heads, head_dim = self.heads
        heads = self.projected[start:stop].double().view(stop - start, -1, head_dim)[:, :query_heads]
        cosines, sines = self.rope.at(torch.arange(start, stop))
        turned = (heads * cosines + heads.roll(head_dim // 2, -1) * sines).transpose(0, 1)
        keys, values = (
            numbers(self.store.cache[1, :, :, :stop], torch.float64)
            .double()
            .repeat_interleave(query_heads // kv_heads, 1)
        )
        scores = turned @ keys.transpose(1, 2) * (self.kind.attention_scale or 1 / math.sqrt(head_dim))
        if self.kind.score_cap:
            scores = (scores / self.kind.score_cap).tanh() * self.kind.score_cap
        hidden = torch.ones(stop - start, stop, dtype=torch.bool).triu(start + 1)
        if self.kind.window:
            hidden |= torch.ones(stop - start, stop, dtype=torch.bool).tril(start - self.kind.window)
        right: torch.Tensor = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values
        return right.transpose(0, 1).flatten(1)


def chunk(start: int, stop: int, *, decode: bool, block: int = 0) -> ScheduledChunk:
    blocks = range(block, block - -stop // BLOCK_TOKENS)
    return ScheduledChunk("r", tuple(range(stop - start)), start, blocks, decode)


def prompt(stop: int, block: int = 0) -> list[ScheduledChunk]:
    return [chunk(start, min(start + 128, stop), decode=False, block=block) for start in range(0, stop, 128)]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@however_kept
@every_way
def test_attention_is_that_of_float64(way: Kind, kept: KvCacheDType, heads: tuple[int, int, int]) -> None:
    model = Model(way, *heads, kept=kept)
    rows = model.attend(*prompt(601), chunk(601, 607, decode=True))
    near = ATTENTION[rows.dtype]
    for start, stop in PARTS:
        torch.testing.assert_close(rows[start:stop].double(), model.right(start, stop), atol=near, rtol=near)


# Windows shorter than a vector, a cut of a prompt and a span of the kernels, and longer ones.
KINDS = [
    *(LayerKind(window=window) for window in (1, 7, 16, 100, 128, 300, 520)),
    LayerKind(attention_scale=0.3),
    LayerKind(score_cap=2.0),
    LayerKind(window=150, attention_scale=0.2, score_cap=1.5),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@however_kept
@every_way
def test_attention_with_windows_and_bent_scores_is_that_of_float64(
    way: Kind, kept: KvCacheDType, kind: LayerKind
) -> None:
    model = Model(way, 6, 2, 20, kind, kept)
    rows = model.attend(*prompt(601), chunk(601, 607, decode=True))
    near = ATTENTION[rows.dtype]
    for start, stop in PARTS:
        torch.testing.assert_close(rows[start:stop].double(), model.right(start, stop), atol=near, rtol=near)


@pytest.mark.parametrize("kind", [LayerKind(window=150), LayerKind(window=530, score_cap=1.5)], ids=str)
@however_kept
@every_way
def test_a_rows_bits_are_the_same_wherever_its_prompt_is_cut_and_its_window_begins(
    way: Kind, kept: KvCacheDType, kind: LayerKind
) -> None:
    model = Model(way, 6, 2, 64, kind, kept)
    whole = model.attend(*prompt(640))
    pieces = [model.attend(chunk(start, start + 16, decode=False)) for start in range(0, 640, 16)]
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@however_kept
@every_way
def test_a_rows_bits_are_the_same_alone_and_in_company_wherever_its_keys_lie(
    way: Kind, kept: KvCacheDType, heads: tuple[int, int, int]
) -> None:
    model = Model(way, *heads, kept=kept)
    alone = [
        model.attend(one) for one in (*prompt(301), *(chunk(row, row + 1, decode=True) for row in range(301, 307)))
    ]
    company = [chunk(0, 1, decode=True, block=19), chunk(0, 100, decode=False, block=20)]
    together = model.attend(*company, *prompt(301, block=33), chunk(301, 307, decode=True, block=33))
    assert torch.equal(torch.cat(alone), together[101:])


@pytest.mark.parametrize("head_dim", [64, 20])
@every_way
def test_keys_and_values_are_kept_as_the_nearest_numbers_of_float8(way: Kind, head_dim: int) -> None:
    model, exact = Model(way, 6, 2, head_dim, kept="fp8"), Model(way, 6, 2, head_dim)
    exact.projected = model.projected
    # Small numbers, ties, those that are too large, and no numbers.
    model.projected[:64] *= torch.logspace(-4, 4, 64).unsqueeze(1).to(model.projected.dtype)
    odd = [17, 19, -17, 447, 464, -1e9, math.inf, -math.inf, math.nan]
    model.projected[64, -len(odd) :] = torch.tensor(odd).to(model.projected.dtype)
    for one in (model, exact):
        one.attend(*prompt(65), chunk(65, 70, decode=True))
    assert torch.equal(model.store.cache[1, :, :, :70], as_fp8(exact.store.cache[1, :, :, :70]))


@every_way
def test_every_cut_of_a_prompt_leaves_the_bits_of_what_is_kept_in_fp8(way: Kind) -> None:
    model = Model(way, 6, 2, 64, LayerKind(window=100), "fp8")
    whole = model.attend(chunk(0, 123, decode=False), chunk(123, 140, decode=True))
    for cut in range(PROMPT_CUT, 123, PROMPT_CUT):
        parts = [model.attend(chunk(0, cut, decode=False)), model.attend(chunk(cut, 123, decode=False))]
        parts += [model.attend(chunk(row, row + 1, decode=True)) for row in range(123, 140)]
        assert torch.equal(torch.cat(parts), whole), cut


@every_way
def test_what_lies_behind_a_row_in_the_cache_counts_as_nothing_be_it_no_number(way: Kind) -> None:
    model, other = Model(way, 6, 2, 20), Model(way, 6, 2, 20)
    model.store.cache[:, :, :, 77:] = float("nan")
    other.store.cache[:, :, :, 77:] = 0.0
    chunks = *prompt(70), chunk(70, 77, decode=True)
    assert torch.equal(model.attend(*chunks), other.attend(*chunks))


@pytest.mark.parametrize("blocks", [range(3), range(6_000, 6_004), range(-1, 3)])
@pytest.mark.parametrize("way", WAYS[:1])
def test_pieces_that_the_cache_has_no_room_for_are_refused(way: Kind, blocks: range) -> None:
    model = Model(way, 10, 5, 64)
    assert model.store.blocks < 6_000
    with pytest.raises(ValueError, match=r"positions 0 \.\. 50 are not in"):
        model.attention.over([ScheduledChunk("r", tuple(range(50)), 0, blocks, False)])
    with pytest.raises(ValueError, match=r"positions 640 \.\. 641 are not in"):
        model.attention.over([chunk(640, 641, decode=True)])


@pytest.mark.parametrize("size", [60, 64, 70, 800])
@every_way
def test_normalisation_is_that_of_float64(way: Kind, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    hidden, weight = (torch.randn(*shape, generator=generator).to(dtype_of(way)) for shape in ((9, size), (size,)))
    norm = CompiledNorm(kernels_of(way), weight, 1e-5)
    ours, theirs = norm(hidden), TorchNorm(weight.double(), 1e-5)(hidden.double())
    torch.testing.assert_close(ours.double(), theirs, atol=0.0, rtol=ROUNDED[ours.dtype])
    assert torch.equal(norm(hidden[4:5]), ours[4:5])


@pytest.mark.parametrize("size", [16, 43, 172])
@every_way
def test_the_gate_is_that_of_float64(way: Kind, size: int) -> None:
    dtype = dtype_of(way)
    gate_up = (8 * torch.randn(5, 2 * size, generator=torch.Generator().manual_seed(size))).to(dtype)
    out = torch.empty(5, size, dtype=dtype)
    kernels_of(way).silu_times(TYPES[DTYPES[dtype]], gate_up.data_ptr(), out.data_ptr(), 5, size)
    gate, up = gate_up.double().chunk(2, dim=1)
    torch.testing.assert_close(out.double(), silu(gate) * up, atol=1e-20, rtol=ROUNDED[dtype])


@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (70, 131), (172, 512), (96, 640), (200, 1_024), (80, 2_336)])
@pytest.mark.parametrize("bias", [False, True])
@every_way
def test_rows_times_a_matrix_of_any_shape_are_those_of_float64_and_the_same_in_any_company(
    way: Kind, outputs: int, inputs: int, bias: bool
) -> None:
    generator, dtype = torch.Generator().manual_seed(inputs), dtype_of(way)
    tensors = {"m.weight": torch.randn(outputs, inputs, generator=generator).to(dtype)}
    if bias:
        tensors["m.bias"] = torch.randn(outputs, generator=generator).to(dtype)
    linear = CompiledLinear(kernels_of(way), tensors, "m")
    rows = torch.randn(140, inputs, generator=generator).to(dtype)
    residual = torch.randn(140, outputs, generator=generator).to(dtype)
    made = linear.plus(rows, residual)
    right = rows.double() @ tensors["m.weight"].double().T + residual.double()
    right = right + tensors["m.bias"].double() if bias else right
    size = math.sqrt(inputs)
    torch.testing.assert_close(made.double(), right, atol=1e-6 * size, rtol=ROUNDED[dtype])
    # Less what they are rounded to, so that even the last bit of the sums shows.
    rest = linear.plus(rows, -linear(rows))
    for count in (0, 1, 2, 4, 5, 6, 13, 16, 17, 66, 67, 121, 140):
        assert torch.equal(linear.plus(rows[-count:] if count else rows[:0], residual[-count:]), made[-count:][:count])
        few = rows[-count:] if count else rows[:0]
        assert torch.equal(linear.plus(few, -linear(few)), rest[140 - count :])


@every_way
def test_numbers_that_are_missing_are_refused(way: Kind) -> None:
    kernels = kernels_of(way)
    with pytest.raises(TypeError, match="attend takes 7 arguments, not 1"):
        kernels.attend(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="rms_norm takes 8 arguments, not 6"):
        kernels.rms_norm(0, 1, 2, 3, 4, 5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        kernels.silu_times("a", 1, 2, 3, 4)  # type: ignore[arg-type]


@every_way
def test_no_rows_are_no_work(way: Kind) -> None:
    kernels, nothing = kernels_of(way), array("q", [0] * 100)
    address = nothing.buffer_info()[0]
    kernels.run_layer(TYPES[way.dtype], address, address, 0, address, 0, address, 0, 1e-5)
    kernels.attend(TYPES[way.dtype], address, 0, address, address, 0, address)
    kernels.rms_norm(TYPES[way.dtype], address, address, address, 0, 16, 1e-5, 0.0)
