"""How likely tokens are: by compiled kernels what numpy finds, with the same bits in every batch and at every level."""

import numpy as np
import pytest
import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels, find_compiled
from livescale.services.worker.engine.likelihoods import LikelihoodsWanted, RowLikelihoods, tell_likelihoods
from livescale.shared.messages.requests import TokenLogprobs

DTYPES = [torch.float32, torch.bfloat16]
assert set(TYPES) == {"float32", "bfloat16"}


def by_level(threads: int = 1) -> dict[str, Kernels]:
    """Kernels of each level of vector instructions that this CPU has, and of each variant."""
    compiled = find_compiled()
    if compiled is None:
        pytest.skip("there is no compiler")
    found = {level: compiled.Kernels("portable", level, threads) for level in compiled.levels()}
    for variant in ("avx512_bf16", "amx"):
        try:
            found[variant] = compiled.Kernels(variant, "avx512", threads)
        except ValueError:
            continue  # this CPU has no such instructions
    return found


def noise(size: int, dtype: torch.dtype, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return (torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 5, 16, 127, 128, 129, 1_000, 131_072])
def test_kernels_tell_what_float64_finds_at_every_level(size: int, dtype: torch.dtype) -> None:
    asked = [LikelihoodsWanted(noise(size, dtype, seed), seed % size, 5) for seed in range(4)]
    right = [one.logits.double().log_softmax(0) for one in asked]
    expected = tell_likelihoods(asked, None)
    for told, one, row in zip(expected, asked, right, strict=True):
        order = torch.sort(row, descending=True, stable=True).indices[:5].tolist()
        assert told.token == one.token
        assert told.logprobs.chosen == float(row[told.token].float())
        assert told.logprobs.top == [(id, float(row[id].float())) for id in order]
    for kernels in by_level().values():
        assert tell_likelihoods(asked, kernels) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_told_of_a_row_depends_on_that_row_alone(dtype: torch.dtype) -> None:
    rows = [noise(1_003, dtype, seed) for seed in range(7)]
    asked = [LikelihoodsWanted(row, 3, count) for count, row in enumerate(rows)]
    asked.append(LikelihoodsWanted(rows[0], 9, 0, (8, 2, 8)))
    for kernels in by_level(threads=3).values():
        together = tell_likelihoods(asked, kernels)
        assert together == [tell_likelihoods([one], kernels)[0] for one in asked]
        moved = [LikelihoodsWanted(torch.cat((row[:1], row))[1:], 3, count) for count, row in enumerate(rows)]
        assert together[:-1] == tell_likelihoods(moved, kernels)  # at another address
        assert [id for id, _ in together[-1].logprobs.top] == [8, 2, 8]


@pytest.mark.parametrize("kind", ["spread", "alike", "equal", "forbidden", "rising", "far apart"])
@pytest.mark.parametrize(("size", "count"), [(700, 3), (5_000, 9), (5_000, 10), (40_000, 20), (40_000, 4_000)])
def test_the_likeliest_of_many_are_those_that_sorting_finds(size: int, count: int, kind: str) -> None:
    logits = noise(size, torch.float32, size + count)
    match kind:
        case "alike":
            logits = logits.round()
        case "equal":
            logits[:] = 1.5
        case "forbidden":
            logits[torch.rand(size, generator=torch.Generator().manual_seed(1)) < 0.99] = -torch.inf
        case "rising":
            logits = logits.sort().values
        case "far apart":
            logits = logits * 1e6
    order = np.argsort(-logits.numpy(), kind="stable")[:count].tolist()
    for kernels in (None, *by_level().values()):
        (told,) = tell_likelihoods([LikelihoodsWanted(logits, 0, count)], kernels)
        assert [id for id, _ in told.logprobs.top] == order
        best = float(logits.double().log_softmax(0).max().float())
        assert told.logprobs.top[0][1] == best


def test_equally_likely_tokens_are_told_in_order() -> None:
    for kernels in (None, *by_level().values()):
        (told,) = tell_likelihoods([LikelihoodsWanted(torch.zeros(8), 5, 3)], kernels)
        likely = float(np.float32(-np.log(8)))
        assert told == RowLikelihoods(5, TokenLogprobs(likely, [(id, likely) for id in range(3)]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 130, 5_000])
def test_the_likeliest_is_found_where_no_token_is_named_and_of_equal_ones_the_lowest(
    size: int, dtype: torch.dtype
) -> None:
    rows = [noise(size, dtype, seed).round() for seed in range(5)]
    tokens = [int(np.argmax(row.float().numpy())) for row in rows]
    for kernels in (None, *by_level().values()):
        for others in ((0, ()), (2, ()), (0, (0,))):
            open_tokens = tell_likelihoods([LikelihoodsWanted(row, None, *others) for row in rows], kernels)
            assert [told.token for told in open_tokens] == tokens
            known = [LikelihoodsWanted(row, token, *others) for row, token in zip(rows, tokens, strict=True)]
            assert open_tokens == tell_likelihoods(known, kernels)


def test_a_token_that_alone_is_possible_is_certain() -> None:
    logits = torch.full((300,), -torch.inf)
    logits[7] = 2.5
    for kernels in (None, *by_level().values()):
        assert tell_likelihoods([LikelihoodsWanted(logits, 7, 1)], kernels) == [
            RowLikelihoods(7, TokenLogprobs(0.0, [(7, 0.0)]))
        ]


def test_what_is_no_token_is_refused() -> None:
    for kernels in (None, *by_level().values()):
        for token, named in ((8, ()), (0, (3, 8))):
            with pytest.raises(IndexError):
                tell_likelihoods([LikelihoodsWanted(torch.zeros(8), token, 0, named)], kernels)


def test_other_numbers_than_the_kernels_have_are_told_by_numpy() -> None:
    logits = noise(100, torch.float16)
    for kernels in by_level().values():
        assert tell_likelihoods([LikelihoodsWanted(logits, 2, 4)], kernels) == tell_likelihoods(
            [LikelihoodsWanted(logits.float(), 2, 4)], None
        )
