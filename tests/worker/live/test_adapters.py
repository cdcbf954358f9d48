"""Requests with adapters in a live scale have the tokens and log-probabilities of an instance that nothing disturbs."""

import pytest

from livescale.shared.messages.requests import AdapterUse
from livescale.shared.simulation.virtual_time import run
from tests.worker.live.adapted import KINDS, AdaptedKind, AdapterHosts, adapted_kind, hosts_of
from tests.worker.live.engines import BLOCKS
from tests.worker.live.pool import WorkerPool, worker_pool
from tests.worker.requests import penalised, random_prompt, submit

EACH = pytest.mark.parametrize("kind", KINDS, ids=["float32", "bfloat16"])


async def ask(pool: WorkerPool, number: int, adapter: AdapterUse | None, worker: str = "t", rows: int = 150) -> None:
    prompt = random_prompt(number, rows)
    request = submit(f"r{number}", prompt, max_tokens=8, sampling=penalised(number), adapter=adapter)
    await pool.client.submit(request, worker)


async def all_kinds(pool: WorkerPool, count: int, worker: str = "t", first: int = 0) -> None:
    """Ask for each adapter in turn, and for the base model."""
    assert isinstance(pool.kind, AdaptedKind)
    for number in range(first, first + count):
        await ask(pool, number, pool.kind.use(number), worker)


async def live(pool: WorkerPool) -> AdapterHosts:
    """Have s serve, and t be live with two layers."""
    await pool.loaded("s")
    hosts = await hosts_of(pool)
    await pool.load("t", [0, 1, 2], "zigzag")
    await pool.until(lambda: pool.state("t") == "live")
    return hosts


@EACH
@pytest.mark.parametrize("resident", [(), ("s",), ("t",), ("s", "t")], ids=str)
def test_layers_that_two_workers_run_give_the_same_bits(kind: AdaptedKind, resident: tuple[str, ...]) -> None:
    async def main() -> None:
        async with worker_pool("s", "t", kind=kind) as pool:
            hosts = await live(pool)
            await hosts.bring(*resident)
            await all_kinds(pool, 6)
            await pool.until(lambda: pool.count("t", "live_layers") == 8)  # of those that have KV blocks
            await pool.help("s", "t")
            await pool.until(lambda: pool.count("s", "pulled_tasks") >= 3)
            await pool.finish_loading("t")
            await all_kinds(pool, 3, "t", first=6)
            await pool.done()
            assert len(hosts.orders) == 2 * (2 - len(resident))  # each adapter once, where it was not

    run(main(), limit_seconds=600)


@EACH
@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "silent"])
def test_a_host_that_dies_as_it_sends_costs_another_try(kind: AdaptedKind, is_noticed: bool) -> None:
    async def main() -> None:
        async with worker_pool("s", "t", kind=kind) as pool:
            hosts = await live(pool)
            hosts.open.clear()
            await all_kinds(pool, 2)
            await hosts.kill(await hosts.ordered(2), is_noticed=is_noticed)
            hosts.open.set()
            await pool.until(lambda: pool.count("t", "live_layers") == 4)
            await pool.help("s", "t")
            await pool.finish_loading("t")
            await pool.done()
            assert set(hosts.orders[:2]) == {"h1", "h2"}
            assert len(hosts.orders) >= 4  # what broke off, and what the source fetched

    run(main(), limit_seconds=600)


def test_a_request_whose_adapter_is_missing_holds_up_no_layer_of_others() -> None:
    kind = adapted_kind()

    async def main() -> None:
        async with worker_pool("s", "t", kind=kind) as pool:
            hosts = await live(pool)
            hosts.open.clear()
            await ask(pool, 0, kind.named("mine"))
            await hosts.ordered()
            for number in (2, 5):
                await ask(pool, number, None)
            await pool.until(lambda: pool.count("t", "live_layers") == 4)
            await pool.help("s", "t")
            await pool.until(lambda: pool.count("s", "pulled_tasks") == 2)
            await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes[1:]))
            assert pool.count("t", "live_layers") == 4
            hosts.open.set()
            await pool.until(lambda: pool.count("s", "pulled_tasks") == 3)
            await pool.finish_loading("t")
            await pool.done()

    run(main(), limit_seconds=600)


def test_one_whose_adapter_comes_after_the_last_block_is_run_by_steps() -> None:
    kind = adapted_kind()

    async def main() -> None:
        async with worker_pool("s", "t", kind=kind) as pool:
            hosts = await live(pool)
            hosts.open.clear()
            await ask(pool, 0, kind.named("mine"))
            await ask(pool, 2, None)
            await pool.until(lambda: pool.count("t", "live_layers") == 2)
            await pool.finish_loading("t")
            await pool.until(lambda: pool.client.wishes[1].is_over)
            assert not pool.client.wishes[0].tokens
            hosts.open.set()
            await pool.done()

    run(main(), limit_seconds=600)


def test_a_target_that_dies_while_it_waits_for_an_adapter_loses_the_request_to_others() -> None:
    kind = adapted_kind()

    async def main() -> None:
        async with worker_pool("s", "t", kind=kind) as pool:
            hosts = await live(pool)
            hosts.open.clear()
            await all_kinds(pool, 3)
            await hosts.ordered(2)
            await pool.help("s", "t")
            hosts.open.set()
            await pool.kill("t")
            await pool.done()

    run(main(), limit_seconds=600)


def test_an_adapter_that_never_comes_fails_its_request_and_no_other() -> None:
    kind = adapted_kind()

    async def main() -> None:
        async with worker_pool("s", "t", kind=kind) as pool:
            hosts = await live(pool)
            for host in ("h1", "h2"):
                await hosts.kill(host)
            await ask(pool, 0, kind.named("mine"))
            await ask(pool, 2, None)
            await pool.help("s", "t")
            await pool.until(lambda: pool.client.wishes[0].is_over)
            assert pool.client.wishes.pop(0).ends == ["error"]
            await pool.finish_loading("t")
            await pool.done()

    run(main(), limit_seconds=600)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_instances_of_two_ranks_give_the_same_bits(dtype: str) -> None:
    kind = adapted_kind("float32" if dtype == "float32" else "bfloat16", ranks=2)

    async def main() -> None:
        async with worker_pool("s", "t", kind=kind) as pool:
            await live(pool)
            await all_kinds(pool, 3)
            await pool.until(lambda: pool.count("t", "live_layers") == 6)
            await pool.help("s", "t")
            await pool.until(lambda: pool.count("s", "pulled_tasks") >= 1)
            await pool.load("t", list(range(BLOCKS)), "zigzag")
            await pool.until(lambda: pool.ready("t") == BLOCKS)
            await pool.serve("t")
            await pool.done()

    run(main(), limit_seconds=600)
