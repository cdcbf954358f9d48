"""Requests that move while they are decoded, as their worker drains: the tokens are those of one worker alone."""

import asyncio

import pytest
from msgspec.structs import replace

from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.requests import PromptLogprobs
from livescale.shared.messages.transfers import InstanceServing
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import INSTANCE, MOVED
from tests.worker.disaggregation.pairs import counted, move, reserved, running, slow_link, with_pair
from tests.worker.live.engines import BFLOAT16, FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import penalised, random_prompt, submit

KINDS = pytest.mark.parametrize("kind", [MODELLED, FLOAT32, BFLOAT16], ids=["modelled", "float32", "bfloat16"])


async def follow(pool: WorkerPool, spares: list[InstanceServing]) -> None:
    """Keep the first word that an instance is no more."""
    async for received in await pool.bus.subscribe(INSTANCE):
        if received.message.what == "spare":
            spares.append(received.message)
            return


async def follow_kept(pool: WorkerPool, kept: list[RequestsMoved]) -> None:
    """Keep the first word that a worker decodes itself what another was to decode."""
    async for received in await pool.bus.subscribe(MOVED):
        if received.message.worker == received.message.previous:
            kept.append(received.message)
            return


@KINDS
def test_a_request_that_moves_has_the_tokens_that_one_worker_would_make(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        ids = await running(pool, 3)
        assert await asyncio.gather(*(move(pool, id) for id in ids)) == [None] * 3
        assert pool.client.places == dict.fromkeys(ids, "d")
        assert counted(pool, "p", "moves_total") == 3
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert [wish.submissions for wish in pool.client.wishes] == [0, 0, 0]

    with_pair(act, kind=kind)


@KINDS
def test_it_is_decoded_while_its_kv_is_on_the_way_and_what_came_meanwhile_is_computed_again(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.05)
        (id,) = await running(pool, tokens=100)
        moving = asyncio.ensure_future(move(pool, id))
        await pool.until(lambda: reserved(pool) == 1)
        before = len(pool.client.wishes[0].tokens)
        assert await moving is None
        assert len(pool.client.wishes[0].tokens) > before + 3
        assert not pool.client.wishes[0].is_over

    with_pair(act, kind=kind)


def test_none_moves_while_other_workers_run_layers_of_it_and_have_their_kv() -> None:
    async def act(pool: WorkerPool) -> None:
        (id,) = await running(pool)
        serving = pool.members["p"].worker._serving
        serving.runs_steps = False  # as while the worker leads a pipeline, whole or not
        assert await move(pool, id) == 429
        serving.begin_steps()
        assert await move(pool, id) is None

    with_pair(act, kind=MODELLED)


@pytest.mark.parametrize("kind", [MODELLED, FLOAT32], ids=["modelled", "float32"])
def test_one_that_is_still_prefilled_moves_after_its_first_token(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.client.submit(submit("own", random_prompt(8, 400), max_tokens=2), "p")
        await pool.client.submit(submit("r", random_prompt(9, 400), max_tokens=40), "p")
        await asyncio.sleep(0.001)
        assert pool.client.wishes[1].tokens == []
        assert await move(pool, "r") is None
        assert pool.client.wishes[1].tokens

    with_pair(act, kind=kind)


@pytest.mark.parametrize("kind", [MODELLED, BFLOAT16], ids=["modelled", "bfloat16"])
def test_what_is_told_of_tokens_is_the_same_and_it_may_move_again(kind: EngineKind) -> None:
    asked = submit("own", random_prompt(3, 200), max_tokens=60, sampling=penalised(3))
    asked = replace(asked, prompt_logprobs=PromptLogprobs(top=1))

    async def act(pool: WorkerPool) -> None:
        await pool.client.submit(asked, "p")
        await pool.until(lambda: pool.client.wishes[0].is_over)
        await pool.client.submit(replace(asked, request_id="given"), "p")
        for giver, taker in (("p", "d"), ("d", "e"), ("e", "p")):
            known = len(pool.client.wishes[1].tokens)
            await pool.until(lambda known=known: len(pool.client.wishes[1].tokens) > known + 2)  # type: ignore[misc]
            assert await move(pool, "given", giver, taker) is None
        await pool.until(lambda: pool.client.wishes[1].is_over)
        own, given = pool.client.wishes
        assert (given.logprobs, given.prompt_logprobs) == (own.logprobs, own.prompt_logprobs)
        assert len(given.logprobs) == 60

    with_pair(act, "e", kind=kind)


def test_a_worker_that_drains_is_spare_long_before_its_requests_end() -> None:
    async def act(pool: WorkerPool) -> None:
        ids, spares = await running(pool, 3, tokens=300), list[InstanceServing]()
        pool.act(follow(pool, spares))
        await asyncio.sleep(0)
        await pool.drain("p")
        assert await asyncio.gather(*(move(pool, id) for id in ids)) == [None] * 3
        await pool.until(lambda: pool.state("p") == "spare")
        assert [one.moved_requests for one in spares] == [3]
        assert not any(wish.is_over for wish in pool.client.wishes)

    with_pair(act)


@KINDS
def test_what_another_refused_to_decode_moves_as_its_worker_drains(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        kept, spares = list[RequestsMoved](), list[InstanceServing]()
        pool.act(follow(pool, spares))
        pool.act(follow_kept(pool, kept))
        for number in range(4):  # as many as run at once
            own = submit(f"own{number}", random_prompt(number, 40), max_tokens=100)
            await pool.client.submit(own, "d")
        split = submit("split", random_prompt(9, 150), max_tokens=60, sampling=penalised(9))
        await pool.client.submit(split, "p", decode="d")
        await pool.until(lambda: bool(kept))
        assert kept == [RequestsMoved(worker="p", previous="p", request_ids=["split"])]
        await pool.drain("p")
        assert await move(pool, "split", taker="e") is None
        assert pool.client.places["split"] == "e"
        await pool.until(lambda: pool.state("p") == "spare")
        assert [(one.moved_requests, one.kept_requests) for one in spares] == [(1, 0)]

    with_pair(act, "e", kind=kind)


def test_why_a_request_stayed_is_told_once_its_worker_has_drained() -> None:
    async def act(pool: WorkerPool) -> None:
        ids, spares = await running(pool, 2), list[InstanceServing]()
        pool.act(follow(pool, spares))
        await asyncio.sleep(0)
        await pool.drain("p")
        assert await move(pool, "unknown") == 409
        assert [await move(pool, id, taker="nobody") for id in ids] == [429, 429]
        assert await move(pool, ids[1]) is None
        await pool.until(lambda: pool.state("p") == "spare")
        assert [(one.moved_requests, one.kept_requests) for one in spares] == [(1, 1)]
        assert spares[0].kept_because == "nothing came of the move to nobody"

    with_pair(act)


@pytest.mark.parametrize("kind", [MODELLED, FLOAT32], ids=["modelled", "float32"])
def test_what_began_at_an_instance_that_loaded_or_its_helper_moves_once_that_serves(kind: EngineKind) -> None:
    async def whole() -> None:
        async with worker_pool("p", "t", "d", kind=kind) as pool:
            await pool.loaded("d")
            await pool.beside("p", "t", [0, 1, 2])
            for number in range(6):
                request = submit(f"r{number}", random_prompt(number, 200), max_tokens=100)
                await pool.client.submit(request, "t")
            await pool.help("p", "t")
            await pool.until(lambda: len(pool.client.moves) > 1)
            await pool.finish_loading("t")
            givers: dict[str, str] = {}
            while len(givers) < 3:
                for id, giver in list(pool.client.places.items()):
                    if giver != "d" and await move(pool, id, giver) is None:
                        givers[id] = giver
                await asyncio.sleep(0.01)
            assert {*givers.values()} == {"p", "t"}
            await pool.done()

    run(whole(), limit_seconds=600)
