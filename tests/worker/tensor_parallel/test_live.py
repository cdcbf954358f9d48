"""An instance of two workers that is live while it loads."""

import pytest

from livescale.shared.messages.parameters import DType
from tests.worker.tensor_parallel.stage import TARGET, rank_stage, wanted


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
async def test_what_was_begun_while_it_loaded_ends_with_the_same_tokens(dtype: DType) -> None:
    requests = [wanted(number) for number in range(3)]
    async with rank_stage(dtype) as stage:
        expected = await stage.undisturbed(*requests)
        for layers, request in enumerate(requests, start=1):
            await stage.live(layers)
            await stage.made.admit("t-0", request)
            await stage.ran(sum(range(layers + 1)) + (layers - 1) * layers // 2)
        await stage.have(TARGET, stage.blocks, stage.blocks)
        await stage.serve(TARGET)
        assert await stage.finished(*requests) == expected
