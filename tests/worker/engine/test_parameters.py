"""Torch's own kernels, which run on GPUs and where no others were compiled: right, over parameters in a device's
memory, and of each row the same bits wherever it stands."""

import pytest
import torch

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import Kernels, find_compiled, open_variant
from livescale.services.worker.engine.matrices import CompiledLinear
from livescale.services.worker.engine.parameters import CPU_SLAB_ROWS, TorchLinear, stable_silu, unpacked
from livescale.shared.memory.arena import placed_bytes
from livescale.shared.memory.device_arena import DeviceArena
from livescale.shared.messages.quantization import Packing, ScaleType
from tests.worker.engine.configs import CONFIGS
from tests.worker.engine.greedy import are_greedy
from tests.worker.engine.models import VARIANTS_HERE, Kind, checkpointed, kind, reference_logits
from tests.worker.engine.packed_matrices import Made, make_packed
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import serve


def on_device(name: str) -> TorchEngine:
    """The model `name` with its blocks in an arena of a device."""
    made = checkpointed(name)
    sizes = [len(block) for block in made.blocks]
    engine = made.empty_engine()
    for index, memory in enumerate(DeviceArena(placed_bytes(sizes), "cpu").place(sizes)):
        memory.tensor.copy_(torch.frombuffer(made.blocks[index], dtype=torch.uint8))
        engine.add_block(index, memory)
    return engine


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_right(name: str) -> None:
    prompts = {str(length): random_prompt(length, length) for length in (1, 40, 129, 300)}
    served = serve(on_device(name), ((0, submit(key, prompt, max_tokens=16)) for key, prompt in prompts.items()))
    for key, prompt in prompts.items():
        tokens = served.tokens[key]
        logits = reference_logits(name, prompt, tokens)
        assert are_greedy(logits, tokens), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(512, 1_100), (1_536, 1_100), (4_096, 1_100), (8_192, 1_100), (70, 2), (70, 10), (131, 31)]
)
def test_a_row_has_the_same_bits_at_every_place_in_its_slab(
    inputs: int, outputs: int, threads: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    tensors = {"m.weight": torch.randn(outputs, inputs, generator=generator).to(dtype)}
    rows = torch.randn(CPU_SLAB_ROWS, inputs, generator=generator).to(dtype)
    linear = TorchLinear(tensors, "m")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        right, gated = linear(rows), stable_silu(linear(rows))
        for shift in range(1, CPU_SLAB_ROWS):
            made = linear(rows.roll(shift, 0))
            assert torch.equal(made.roll(-shift, 0), right), shift
            assert torch.equal(stable_silu(made).roll(-shift, 0), gated), shift
    finally:
        torch.set_num_threads(before)


COMPILED = [kind(variant, "bfloat16") for variant in ("amx", "avx512_bf16", "portable", "amx-emulated")]
PACKINGS = {
    "int4": Packing(codes="int4", group=128, scales="bfloat16"),
    "int4-zeros-float16": Packing(codes="int4", group=32, scales="float16", zeros=True),
    "int4-float32": Packing(codes="int4", group=64, scales="float32", zeros=True),
    "int8": Packing(codes="int8", group=0, scales="bfloat16"),
    "int8-zeros-float16": Packing(codes="int8", group=128, scales="float16", zeros=True),
    "int8-float32": Packing(codes="int8", group=0, scales="float32"),
    "fp8": Packing(codes="fp8", group=0, scales="bfloat16"),
    "mxfp4": Packing(codes="fp4", group=32, scales="e8m0"),
    "fp8-blocks": Packing(codes="fp8", group=128, scales="float32"),
    "fp8-panels": Packing(codes="fp8", group=128, scales="float32-panel"),
    "int8-panels": Packing(codes="int8", group=0, scales="float32-panel"),
}
# The second and third have edges that fill neither a panel nor a span nor a group.
SHAPES = [(128, 256), (70, 1_112), (200, 2_070)]
ROWS = (1, 2, 3, 4, 5, 8, 33, 150)

every_packing = pytest.mark.parametrize("packing", [pytest.param(one, id=name) for name, one in PACKINGS.items()])


def noise(rows: int, inputs: int) -> torch.Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).bfloat16()


def check_law(kernels: Kernels, made: Made) -> None:
    outputs, inputs = made.right.shape
    bias = noise(1, outputs)[0]
    packed, plain = (
        CompiledLinear(kernels, {"m.weight": weight, "m.bias": bias}, "m") for weight in (made.packed, made.right)
    )
    for count in ROWS:
        rows, residual = noise(count, inputs), noise(count, outputs)
        assert torch.equal(packed(rows), plain(rows)), count
        assert torch.equal(packed.plus(rows, residual), plain.plus(rows, residual)), count


@pytest.mark.parametrize("way", COMPILED)
@every_packing
def test_products_have_the_bits_of_the_matrix_in_bfloat16(packing: Packing, way: Kind) -> None:
    assert way.kernels is not None
    for outputs, inputs in SHAPES:
        check_law(way.kernels, make_packed(packing, outputs, inputs))


@pytest.mark.parametrize("capability", ["avx2", "default"])
@every_packing
def test_they_have_them_at_other_levels_of_instructions(
    packing: Packing, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    for variant in ("portable", "amx-emulated"):
        check_law(open_variant(variant), make_packed(packing, 70, 350))


@pytest.mark.skipif("avx512_bf16" not in VARIANTS_HERE, reason="this CPU has no AVX512-BF16")
@every_packing
def test_products_by_either_instruction_have_the_same_bits(packing: Packing) -> None:
    compiled = find_compiled()
    assert compiled is not None
    for outputs, inputs in SHAPES:
        made = make_packed(packing, outputs, inputs)
        dots, fma = (
            CompiledLinear(compiled.Kernels("avx512_bf16", means, 1), {"m.weight": made.packed}, "m")
            for means in ("dots", "fma")
        )
        for count in ROWS:
            rows = noise(count, inputs)
            assert torch.equal(dots(rows), fma(rows)), count


@every_packing
def test_torch_unpacks_the_same_matrix(packing: Packing) -> None:
    for outputs, inputs in SHAPES:
        made = make_packed(packing, outputs, inputs)
        assert torch.equal(unpacked(made.packed).view(torch.uint16), made.right.view(torch.uint16))


@pytest.mark.parametrize("scale", [2.0**-124, 2.0**-77, 2.0**104])
@pytest.mark.parametrize("way", COMPILED)
def test_denormal_and_huge_numbers_have_the_bits_that_they_have_in_bfloat16(way: Kind, scale: float) -> None:
    """Some groups of 2^-77 have a scale so small that the portable kernels unpack them in another way."""
    assert way.kernels is not None
    for codes in ("int4", "int8", "fp8"):
        packing = Packing(codes=codes, group=64, scales="float32")
        check_law(way.kernels, make_packed(packing, 192, 256, scale=scale))
    check_law(way.kernels, make_packed(Packing(codes="fp8", group=64, scales="float32-panel"), 192, 256, scale=scale))


@pytest.mark.parametrize("way", COMPILED)
@pytest.mark.parametrize("scales", ["bfloat16", "float32", "float32-panel"])
def test_an_odd_number_of_inputs_may_be_one_group(scales: ScaleType, way: Kind) -> None:
    assert way.kernels is not None
    check_law(way.kernels, make_packed(Packing(codes="fp8", group=0, scales=scales), 130, 31))


@pytest.mark.parametrize("way", COMPILED)
def test_parts_of_one_map_may_be_packed_unlike_each_other(way: Kind) -> None:
    assert way.kernels is not None
    made = [make_packed(packing, 72, 160) for packing in (PACKINGS["int4"], PACKINGS["fp8"])]
    plain = {f"{name}.weight": matrix for name, matrix in zip("abc", (one.right for one in made), strict=False)}
    plain["c.weight"] = noise(40, 160)
    packed = plain | {"a.weight": made[0].packed, "b.weight": made[1].packed}
    for count in ROWS:
        rows = noise(count, 160)
        maps = [CompiledLinear(way.kernels, tensors, *"abc") for tensors in (packed, plain)]
        assert torch.equal(maps[0](rows), maps[1](rows)), count
