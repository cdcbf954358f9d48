"""What is lost while an instance of two workers is live: whoever has a request goes on, with the same tokens."""

import pytest

from livescale.services.worker.live import handoff
from livescale.services.worker.ranks import kv as rank_kv
from livescale.services.worker.ranks.kv import RankKv
from livescale.shared.links.contract import Buffer, Peer
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.transfers import Abort
from livescale.shared.subjects import ABORT, LEASE
from tests.shared.transfer.virtual_link import here
from tests.worker.ranks.stage import TARGET, RankStage, rank_stage, wanted


class DamagingPeer:
    """Of what is sent another bit arrives."""

    def __init__(self, peer: Peer) -> None:
        self.path = peer.path
        self._peer = peer
        self.receive, self.close = peer.receive, peer.close

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        data = bytearray(here(buffer))
        data[0] ^= 1 if len(data) > handoff.DIGEST_BYTES else 0
        await self._peer.send(tag, Buffer(memoryview(data)), timeout=timeout)


async def handed_over(stage: RankStage, layers: int) -> None:
    """A request that was begun at the target ends at the source."""
    request = wanted(layers)
    expected = await stage.undisturbed(request)
    await stage.live(layers)
    await stage.made.admit("t-0", request)
    await stage.ran(layers)
    await stage.help("t-0")
    assert await stage.finished(request) == expected


async def spare(stage: RankStage, *workers: str) -> None:
    await stage.made.until(lambda: all(stage.made.state(worker) == "spare" for worker in workers))


@pytest.mark.slow
async def test_kv_that_one_rank_does_not_get_is_computed_again_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff, "PIECE_SECONDS", 1.0)
    monkeypatch.setattr(RankKv, "give", lambda kv, command: None)
    async with rank_stage() as stage:
        await handed_over(stage, 2)
        assert stage.count("s-0", "lost_kv") == 1


async def test_kv_that_comes_damaged_to_one_rank_is_computed_again_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(peer: Peer, part: int, data: memoryview) -> None:
        await handoff.send(DamagingPeer(peer), part, data)

    monkeypatch.setattr(rank_kv, "send", send)
    async with rank_stage() as stage:
        await handed_over(stage, 2)
        assert stage.count("s-0", "lost_kv") == 1


async def test_a_target_ends_with_the_first_of_its_ranks_and_the_source_goes_on() -> None:
    taken, left = wanted(1, tokens=60), wanted(2)
    async with rank_stage() as stage:
        expected = await stage.undisturbed(taken)
        await stage.live(2)
        await stage.made.admit("t-0", taken)
        await stage.ran(2)
        await stage.help("t-0")
        await stage.made.until(lambda: stage.count("s-0", "pulled_tasks") == 1)
        await stage.help()
        await stage.made.admit("t-0", left)
        await stage.ran(4)
        stage.made.workers["t-1"].cancel()
        gone = LeaseChanged(service="worker", id="t-1", epoch=1, state="dead", reason="silent", at=1.0)
        stage.made.bus.publish(LEASE, gone, id="t-1")
        await spare(stage, "t-0")
        assert stage.made.lost == [left.request_id]
        assert await stage.finished(taken) == expected


@pytest.mark.slow
async def test_a_load_that_is_aborted_in_mid_live_leaves_both_ranks_spare() -> None:
    async with rank_stage() as stage:
        await stage.live(1)
        await stage.made.admit("t-0", wanted(1))
        await stage.ran(1)
        for worker in TARGET:
            await stage.made.bus.call(ABORT, Abort(plan_id="t-0", reason="test"), timeout=5, id=worker)
        await spare(stage, *TARGET)
        assert stage.made.lost == ["r1"]
        await stage.made.until(lambda: stage.made.ended[-1] == "r1")
