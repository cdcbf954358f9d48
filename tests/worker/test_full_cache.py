"""A worker whose KV cache is full: requests are preempted, and end with the tokens of an undisturbed run."""

import asyncio

from msgspec.structs import replace
from structlog.testing import capture_logs

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import choose_kernels
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.settings import MIB
from livescale.shared.messages.requests import Cancel, Sampling, Submit
from livescale.shared.messages.transfers import Drain
from livescale.shared.subjects import CANCEL_WORK, DRAIN
from tests.samples import sample
from tests.worker.fleet import CONTEXT, Fleet, fleet
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import serve

COUNT = 10  # 40 tokens each and 210 to come; 1 MiB holds 1,808


def requests(count: int = COUNT) -> list[Submit]:
    return [
        submit(
            f"r-{number}",
            random_prompt(number, 40),
            max_tokens=210,
            sampling=Sampling(temperature=0.9 * (number % 2), seed=number),
        )
        for number in range(count)
    ]


def undisturbed(made: Fleet, asked: list[Submit]) -> dict[str, list[int]]:
    engine = TorchEngine(made.manifest, allocate_kv_memory(16 * MIB), 16, CONTEXT, choose_kernels("auto").kernels)
    for index, view in enumerate(made.memory):
        engine.add_block(index, view)
    served = serve(engine, [(0, request) for request in asked])
    assert served.preempted == 0
    return dict(served.tokens)


def preemptions(made: Fleet, worker: str = "w-1") -> float:
    labels = {"model_name": "m", "engine": worker}
    return sample(made.telemetry[worker], "vllm:num_preemptions_total", **labels)


async def fill(made: Fleet, asked: list[Submit]) -> None:
    """One worker serves, has all these requests, and has preempted some."""
    await made.serving("w-1")
    for request in asked:
        await made.admit("w-1", request)
    await made.until(lambda: preemptions(made) >= 2)


def told(made: Fleet, request_id: str) -> list[int]:
    return [token for row in made.rows.get(request_id, []) for token in row.token_ids]


async def test_a_full_worker_drains_to_its_end_with_the_right_tokens_whoever_is_cancelled_meanwhile() -> None:
    *others, last = requests()
    with capture_logs() as logs:
        async with fleet("w-1", kv_bytes=MIB) as made:
            expected = undisturbed(made, others)
            await fill(made, [*others, last])
            await made.bus.call(DRAIN, Drain(instance="m-w-1", epoch=1), timeout=60, id="w-1")
            made.bus.publish(CANCEL_WORK, Cancel(request_id=last.request_id), id="w-1")
            assert len(await made.finished(last.request_id)) < 210
            for request in others:
                assert await made.finished(request.request_id) == expected[request.request_id]
            await made.until(lambda: made.state("w-1") == "spare")
            counted = preemptions(made)
    logged = [one for log in logs if log["event"] == "requests_preempted" for one in log["requests"]]
    assert (len(logged), "r-0" in logged) == (counted, False)


async def test_what_a_dead_worker_had_preempted_resumes_elsewhere() -> None:
    asked = requests()
    async with fleet("w-1", "w-2", kv_bytes=MIB) as made:
        expected = undisturbed(made, asked)
        await fill(made, asked)
        made.workers["w-1"].cancel()
        await asyncio.wait([made.workers["w-1"]])
        known = {request.request_id: told(made, request.request_id) for request in asked}
        await made.load("w-2", made.me, plan="plan-2", ticket=8)
        made.feed("w-2", ticket=8)
        await made.whole("w-2")
        await made.serve("w-2")
        made.rows.clear()
        for request in asked:
            await made.admit("w-2", replace(request, generated=known[request.request_id]))
        names = {request.request_id for request in asked}
        await made.until(lambda: names <= set(made.ended))
        assert {name: known[name] + told(made, name) for name in names} == expected
