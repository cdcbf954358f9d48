"""Losses while an instance of two workers is live: the worker that has a request goes on, with the same tokens."""

import pytest

from livescale.services.worker.instance import context
from livescale.services.worker.tensor_parallel import kv
from livescale.services.worker.tensor_parallel.kv import RankKv
from livescale.shared.links.contract import Buffer, Peer
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.transfers import Abort
from livescale.shared.subjects import ABORT, DEATH
from tests.shared.transfer.virtual_link import here
from tests.worker.tensor_parallel.ranked_workers import TARGET, RankedWorkers, ranked_workers, wanted


class DamagingPeer:
    """A peer that flips a bit of what is sent."""

    def __init__(self, peer: Peer) -> None:
        self.path = peer.path
        self._peer = peer
        self.receive, self.close = peer.receive, peer.close

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        data = bytearray(here(buffer))
        data[0] ^= 1 if len(data) > context.DIGEST_BYTES else 0
        await self._peer.send(tag, Buffer(memoryview(data)), timeout=timeout)


async def handed_over(ranked: RankedWorkers, layers: int) -> None:
    """Check that a request that was begun at the target ends at the source."""
    request = wanted(layers)
    expected = await ranked.undisturbed(request)
    await ranked.live(layers)
    await ranked.fleet.admit("t-0", request)
    await ranked.ran(layers)
    await ranked.help("t-0")
    assert await ranked.finished(request) == expected


async def spare(ranked: RankedWorkers, *workers: str) -> None:
    await ranked.fleet.until(lambda: all(ranked.fleet.state(worker) == "spare" for worker in workers))


@pytest.mark.slow
async def test_kv_that_one_rank_does_not_get_is_computed_again_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "PIECE_SECONDS", 1.0)
    monkeypatch.setattr(RankKv, "give", lambda kv, command: None)
    async with ranked_workers() as ranked:
        await handed_over(ranked, 2)
        assert ranked.count("s-0", "lost_kv") == 1


async def test_kv_that_comes_damaged_to_one_rank_is_computed_again_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(peer: Peer, part: int, data: memoryview) -> None:
        await context.send(DamagingPeer(peer), part, data)

    monkeypatch.setattr(kv, "send", send)
    async with ranked_workers() as ranked:
        await handed_over(ranked, 2)
        assert ranked.count("s-0", "lost_kv") == 1


async def test_a_target_ends_with_the_first_of_its_ranks_and_the_source_goes_on() -> None:
    taken, left = wanted(1, tokens=60), wanted(2)
    async with ranked_workers() as ranked:
        expected = await ranked.undisturbed(taken)
        await ranked.live(2)
        await ranked.fleet.admit("t-0", taken)
        await ranked.ran(2)
        await ranked.help("t-0")
        await ranked.fleet.until(lambda: ranked.count("s-0", "pulled_tasks") == 1)
        await ranked.help()
        await ranked.fleet.admit("t-0", left)
        await ranked.ran(4)
        ranked.fleet.workers["t-1"].cancel()
        gone = LeaseChanged(service="worker", id="t-1", epoch=1, state="dead", reason="silent", at=1.0)
        ranked.fleet.bus.publish(DEATH, gone, service="worker", id="t-1")
        await spare(ranked, "t-0")
        assert ranked.fleet.lost == [left.request_id]
        assert await ranked.finished(taken) == expected


@pytest.mark.slow
async def test_a_load_that_is_aborted_in_mid_live_leaves_both_ranks_spare() -> None:
    async with ranked_workers() as ranked:
        await ranked.live(1)
        await ranked.fleet.admit("t-0", wanted(1))
        await ranked.ran(1)
        for worker in TARGET:
            await ranked.fleet.bus.call(ABORT, Abort(plan_id="t-0", reason="test"), timeout=60, id=worker)
        await spare(ranked, *TARGET)
        assert ranked.fleet.lost == ["r1"]
        await ranked.fleet.until(lambda: ranked.fleet.ended[-1] == "r1")
