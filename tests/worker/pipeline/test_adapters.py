"""Requests with adapters that workers which load run as a pipeline have the tokens and log-probabilities of one worker
that nothing disturbs."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from livescale.shared.bus.contract import Topic
from livescale.shared.messages.model_parallel import StageAdapter
from livescale.shared.subjects import STAGE_ADAPTER
from tests.worker.live.adapted import KINDS, NAMES, AdaptedKind, hosts_of
from tests.worker.live.pool import WorkerPool
from tests.worker.pipeline.pipelines import PAIR, THREE, request, say_over, whole, with_pipeline

EACH = pytest.mark.parametrize("kind", KINDS, ids=["float32", "bfloat16"])


async def ask(pool: WorkerPool, count: int, tokens: int = 12) -> None:
    """Ask the leader for each adapter in turn, and for the base model."""
    assert isinstance(pool.kind, AdaptedKind)
    for number in range(len(pool.client.wishes), len(pool.client.wishes) + count):
        await pool.client.submit(replace(request(number, tokens), adapter=pool.kind.use(number)), "a")


@EACH
@pytest.mark.parametrize("resident", [(), ("a",), ("b", "c"), ("a", "b", "c")], ids=str)
def test_stages_of_a_pipeline_give_the_same_bits(kind: AdaptedKind, resident: Sequence[str]) -> None:
    async def act(pool: WorkerPool) -> None:
        hosts = await hosts_of(pool, resident)
        await ask(pool, 6)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert len(hosts.orders) == 2 * (3 - len(resident))
        say_over(pool, THREE)

    with_pipeline(act, THREE, kind=kind)


@EACH
def test_they_go_on_where_the_pipeline_ends_under_them(kind: AdaptedKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await hosts_of(pool)
        await ask(pool, 6, tokens=40)
        await pool.until(lambda: sum(len(wish.tokens) >= 2 for wish in pool.client.wishes) >= 3)
        await whole(pool, "a", "b")
        say_over(pool)
        for worker in ("a", "b"):
            await pool.serve(worker)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))

    with_pipeline(act, PAIR, kind=kind)


@EACH
def test_a_host_that_dies_as_it_sends_to_a_stage_costs_another_try(kind: AdaptedKind) -> None:
    async def act(pool: WorkerPool) -> None:
        hosts = await hosts_of(pool, ("a",))
        hosts.open.clear()
        await ask(pool, 3)
        await hosts.kill(await hosts.ordered())
        hosts.open.set()
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert [wish.submissions for wish in pool.client.wishes] == [0, 0, 0]
        say_over(pool)

    with_pipeline(act, PAIR, kind=kind)


@pytest.mark.parametrize("resident", [(), ("a",), ("b",)], ids=str)
def test_a_request_whose_adapter_is_missing_at_a_stage_holds_up_no_step_of_others(resident: Sequence[str]) -> None:
    kind = KINDS[0]

    async def act(pool: WorkerPool) -> None:
        hosts = await hosts_of(pool, resident)
        hosts.open.clear()
        await pool.client.submit(replace(request(0, 12), adapter=kind.named("mine")), "a")
        await hosts.ordered(2 - len(resident))
        for number in (1, 2):
            await pool.client.submit(request(number, 12), "a")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes[1:]))
        assert not pool.client.wishes[0].tokens
        hosts.open.set()
        await pool.until(lambda: pool.client.wishes[0].is_over)
        say_over(pool)

    with_pipeline(act, PAIR, kind=kind)


def test_stages_that_have_an_adapter_are_not_asked_for_it_again() -> None:
    async def act(pool: WorkerPool) -> None:
        await hosts_of(pool)
        asked = list[tuple[str, str, list[str]]]()
        asks: Topic[StageAdapter] = Topic(STAGE_ADAPTER.pattern, StageAdapter)
        heard = await pool.bus.subscribe(asks)

        async def hear() -> None:
            async for received in heard:
                asked.append((received.holes["id"], received.message.version, received.message.used))

        hearing = pool.tasks.create_task(hear())
        for _ in range(3):
            await ask(pool, 3)
            await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        mine, other = (kind.named(name).version for name in NAMES)
        assert sorted(one[:2] for one in asked) == sorted((worker, one) for worker in "bc" for one in (mine, other))
        assert asked[-1][2] == [mine, other]
        say_over(pool, THREE)
        hearing.cancel()

    kind = KINDS[0]
    with_pipeline(act, THREE, kind=kind)


def test_one_that_waits_for_a_stage_goes_on_when_the_pipeline_ends() -> None:
    kind = KINDS[0]

    async def act(pool: WorkerPool) -> None:
        hosts = await hosts_of(pool, ("a",))
        hosts.open.clear()
        await pool.client.submit(replace(request(0, 12), adapter=kind.named("mine")), "a")
        await hosts.ordered()
        await whole(pool, "a")
        say_over(pool)
        await pool.serve("a")
        await pool.until(lambda: pool.client.wishes[0].is_over)
        hosts.open.set()

    with_pipeline(act, PAIR, kind=kind)
