"""Requests change hands between instances of two workers each, and their tokens stay the same."""

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.disaggregation import HandOver
from livescale.shared.messages.parameters import DType
from livescale.shared.subjects import HAND_OVER
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


async def test_an_instance_of_several_ranks_says_why_it_hands_nothing_over() -> None:
    async with ranked_workers() as ranked:
        request = wanted(1)
        await ranked.fleet.admit("s-0", request)
        order = HandOver(request_id=request.request_id, decode="t-0")
        with pytest.raises(Refusal, match="each rank of the instance has a part of their KV") as refused:
            await ranked.fleet.bus.call(HAND_OVER, order, timeout=60, id="s-0")
        assert refused.value.code == 409
        await ranked.drain()
        await ranked.fleet.until(lambda: ranked.fleet.state("s-0") == "spare")
        told = [one for one in ranked.fleet.instances if one.what == "spare" and one.worker == "s-0"]
        assert [(one.kept_requests, one.kept_because) for one in told] == [(1, refused.value.message)]
        assert len((await ranked.finished(request))[request.request_id]) == 12
