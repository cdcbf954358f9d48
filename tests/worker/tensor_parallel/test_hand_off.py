"""Requests change hands between instances of two workers each, and their tokens stay the same."""

import pytest

from livescale.shared.messages.parameters import DType
from tests.worker.tensor_parallel.ranked_workers import TARGET, ranked_workers, wanted


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
async def test_a_request_goes_on_at_a_source_with_the_same_bits_whatever_was_done_of_it(dtype: DType) -> None:
    async with ranked_workers(dtype) as ranked:
        requests = [wanted(layers, tokens=20) for layers in range(1, ranked.layers + 1)]
        expected = await ranked.undisturbed(*requests)
        for layers, request in enumerate(requests, start=1):
            await ranked.live(layers)
            ran = ranked.count("t-0", "live_layers")
            await ranked.fleet.admit("t-0", request)
            await ranked.ran(ran + layers)
            await ranked.help("t-0")
            await ranked.finished(request)
            await ranked.help()
        assert await ranked.finished(*requests) == expected
        assert ranked.count("s-0", "lost_kv") == 0
        assert [one.layers for one in ranked.fleet.moved] == list(range(1, ranked.layers + 1))
        await ranked.have(TARGET, ranked.blocks, ranked.blocks)
        await ranked.serve(TARGET)
