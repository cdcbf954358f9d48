"""An instance of two workers that is live while it loads."""

import pytest

from livescale.shared.messages.parameters import DType
from tests.worker.tensor_parallel.ranked_workers import TARGET, ranked_workers, wanted


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
async def test_what_was_begun_while_it_loaded_ends_with_the_same_tokens(dtype: DType) -> None:
    requests = [wanted(number) for number in range(3)]
    async with ranked_workers(dtype) as ranked:
        expected = await ranked.undisturbed(*requests)
        for layers, request in enumerate(requests, start=1):
            await ranked.live(layers)
            await ranked.fleet.admit("t-0", request)
            await ranked.ran(sum(range(layers + 1)) + (layers - 1) * layers // 2)
        await ranked.have(TARGET, ranked.blocks, ranked.blocks)
        await ranked.serve(TARGET)
        assert await ranked.finished(*requests) == expected
