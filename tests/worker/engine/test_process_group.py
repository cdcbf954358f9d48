"""How ranks meet, and what becomes of those that are left."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from livescale.services.worker.engine import process_group
from livescale.services.worker.engine.contract import RankLost
from livescale.services.worker.engine.process_group import ProcessGroup, open_store, reach_store
from livescale.services.worker.engine.tensor_parallel import added, least

HERE = "127.0.0.1"


def test_ranks_that_meet_gather_in_their_order() -> None:
    store, port = open_store(HERE)

    def run(rank: int) -> list[torch.Tensor]:
        own = store if rank == 0 else reach_store(HERE, port)
        return ProcessGroup(own, rank, 3, HERE).gather(torch.tensor([rank, 10 * rank]))

    with ThreadPoolExecutor(3) as threads:
        for gathered in threads.map(run, range(3)):
            assert torch.stack(gathered).tolist() == [[0, 0], [1, 10], [2, 20]]


def test_who_waits_for_a_rank_that_does_not_come_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "MEETING", timedelta(seconds=0.2))
    store, _ = open_store(HERE)
    with pytest.raises(RankLost, match="the 2 ranks did not meet: wait timeout"):
        ProcessGroup(store, 0, 2, HERE)


def test_a_leader_that_is_not_there_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "MEETING", timedelta(seconds=0.2))
    store, port = open_store(HERE)
    del store
    with pytest.raises(RankLost, match="cannot reach the rank that leads"):
        reach_store(HERE, port)


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(RankLost, match=r"cannot listen on 192\.0\.2\.1"):
        open_store("192.0.2.1")


@pytest.mark.parametrize("leaves", [True, False], ids=["dies", "says nothing"])
def test_a_rank_that_is_lost_ends_the_others_step(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store, port = open_store(HERE)
    others, done = [], threading.Event()

    def other() -> None:
        others.append(ProcessGroup(reach_store(HERE, port), 1, 2, HERE))
        if leaves:
            others.clear()
        done.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        group = ProcessGroup(store, 0, 2, HERE)
        monkeypatch.setattr(process_group, "COLLECTIVE", timedelta(seconds=0.2))
        with pytest.raises(RankLost, match="a rank was lost: "):
            group.gather(torch.zeros(1))
    finally:
        done.set()
        thread.join()


class OnDevice:
    """Two ranks whose tensors lie elsewhere than a CPU's; the other has seven."""

    size, device = 2, "meta"

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        assert part.device.type == self.device
        return [torch.tensor(9), torch.tensor(7)]

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError  # nothing is given to others


def test_what_ranks_count_goes_from_device_to_device() -> None:
    assert least(9, OnDevice()) == 7


def test_parts_are_added_in_their_order_and_rounded_once() -> None:
    parts = [torch.tensor([one], dtype=torch.bfloat16) for one in (256.0, 1.0, 1.0, -256.0)]
    assert added(parts).tolist() == [2.0]
    assert added(parts[:2]).dtype == torch.bfloat16
