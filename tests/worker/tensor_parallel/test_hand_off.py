"""Requests change hands between instances of two workers each, and their tokens stay the same."""

import pytest

from livescale.shared.messages.parameters import DType
from tests.worker.tensor_parallel.stage import TARGET, rank_stage, wanted


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
async def test_a_request_goes_on_at_a_source_with_the_same_bits_whatever_was_done_of_it(dtype: DType) -> None:
    async with rank_stage(dtype) as stage:
        requests = [wanted(layers, tokens=20) for layers in range(1, stage.layers + 1)]
        expected = await stage.undisturbed(*requests)
        for layers, request in enumerate(requests, start=1):
            await stage.live(layers)
            ran = stage.count("t-0", "live_layers")
            await stage.made.admit("t-0", request)
            await stage.ran(ran + layers)
            await stage.help("t-0")
            await stage.finished(request)
            await stage.help()
        assert await stage.finished(*requests) == expected
        assert stage.count("s-0", "lost_kv") == 0
        assert [one.layers for one in stage.made.moved] == list(range(1, stage.layers + 1))
        await stage.have(TARGET, stage.blocks, stage.blocks)
        await stage.serve(TARGET)
