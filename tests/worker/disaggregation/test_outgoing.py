"""KV as it leaves the worker that prefills: what is sent when, whose the request is, and at which rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from livescale.services.worker.disaggregation.outgoing import WEIGHT, KvSendRate, KvTransfer, KvTransferState
from livescale.services.worker.disaggregation.pieces import LEAST_PIECE_BYTES, KvCoverage, KvRegion

LAYERS = 4


def send_all(transfer: KvTransfer, computed: int, cached: int = 0) -> list[KvRegion]:
    regions = []
    while (piece := transfer.next(computed, cached)) is not None:
        regions.append(piece.region)
        transfer.sent(piece)
    return regions


def leave(transfer: KvTransfer, start: int, stop: int, pieces: tuple[range, ...], size: int = 1) -> None:
    for layers in pieces:
        assert transfer.left(KvRegion(start, stop, layers), memoryview(bytes(size)))


def test_pieces_leave_as_their_layers_are_computed_and_the_last_is_one_layer() -> None:
    transfer = KvTransfer(100, LAYERS, LEAST_PIECE_BYTES // 100, by_layer=True)
    pieces = transfer.step(0, 100)
    assert pieces[-1] == range(LAYERS - 1, LAYERS)
    assert transfer.next(0, 0) is None
    assert transfer.left(KvRegion(0, 100, pieces[0]), memoryview(bytes(8)))
    assert send_all(transfer, computed=0) == [KvRegion(0, 100, pieces[0])]
    assert not transfer.is_sent
    leave(transfer, 0, 100, pieces[1:])
    assert len(send_all(transfer, 0)) == len(pieces) - 1
    assert transfer.is_sent


def test_fewer_pieces_leave_where_the_link_is_fast() -> None:
    slow, fast = (KvTransfer(100, 14, LEAST_PIECE_BYTES // 50, by_layer=True) for _ in range(2))
    assert len(fast.step(0, 100, link_pace=100.0)) < len(slow.step(0, 100))


def test_what_has_no_room_stays_in_the_cache_until_it_is_computed() -> None:
    transfer = KvTransfer(100, LAYERS, 1000, by_layer=True)
    assert transfer.step(0, 60, leaves=False) == ()
    assert transfer.staged_bytes == 0
    assert transfer.next(59, 0) is None
    assert send_all(transfer, 60) == [KvRegion(0, 60, range(LAYERS))]
    assert not transfer.is_sent


def test_by_request_nothing_is_sent_before_the_whole_prompt_is_computed() -> None:
    transfer = KvTransfer(100, LAYERS, 1000, by_layer=False)
    assert transfer.step(0, 60) == ()
    assert transfer.step(60, 100) == ()
    assert transfer.next(60, 0) is None
    assert len(send_all(transfer, 100)) == 2
    assert transfer.is_sent


def test_what_the_other_end_has_is_not_sent() -> None:
    transfer = KvTransfer(100, LAYERS, 10_000, by_layer=True)
    leave(transfer, 0, 32, transfer.step(0, 32), size=16)
    transfer.step(32, 100, leaves=False)
    regions = send_all(transfer, 100, cached=48)
    assert {(one.start, one.stop) for one in regions} == {(48, 100)}
    assert transfer.is_sent


def test_what_was_in_the_prefix_cache_here_is_sent_from_there() -> None:
    transfer = KvTransfer(100, LAYERS, 1000, by_layer=True)
    leave(transfer, 64, 100, transfer.step(64, 100))
    assert {(one.start, one.stop) for one in send_all(transfer, 100)} == {(0, 64), (64, 100)}


def test_once_more_sends_all_and_takes_nothing_of_the_step_under_way() -> None:
    transfer = KvTransfer(100, LAYERS, 100, by_layer=True)
    (piece,) = transfer.step(0, 100)
    transfer.again()
    assert not transfer.left(KvRegion(0, 100, piece), memoryview(bytes(8)))
    assert transfer.next(99, 0) is None
    assert send_all(transfer, 100) == [KvRegion(0, 100, range(LAYERS))]


def test_what_stays_in_the_cache_is_sent_from_there_and_no_step_sends_any_of_it() -> None:
    transfer = KvTransfer(100, LAYERS, 1000, by_layer=True)
    transfer.stay()
    assert not transfer.is_sent
    assert transfer.step(60, 100) == ()
    assert transfer.next(99, 0) is None
    assert [(one.start, one.stop) for one in send_all(transfer, 100)] == [(0, 100)]
    assert transfer.is_sent
    assert transfer.step(100, 101) == ()
    assert transfer.is_sent


def test_a_state_that_cannot_follow_is_refused() -> None:
    transfer = KvTransfer(100, LAYERS, 1000, by_layer=True)
    with pytest.raises(ValueError, match="a transfer cannot go from expected to taken"):
        transfer.move(KvTransferState.TAKEN)


@given(
    some.lists(some.integers(1, 40), min_size=1, max_size=8),
    some.lists(some.booleans(), min_size=8, max_size=8),
    some.integers(0, 200),
    some.integers(0, 8),
    some.integers(1, 100_000),
)
def test_whatever_has_room_and_whenever_it_begins_anew_everything_is_sent(
    steps: list[int], room: list[bool], cached: int, anew: int, layer_bytes: int
) -> None:
    positions = sum(steps)
    cached = min(cached, positions - 1)
    transfer = KvTransfer(positions, LAYERS, layer_bytes, by_layer=True)
    coverage, start = KvCoverage(positions, cached, LAYERS), 0
    for number, rows in enumerate(steps):
        pieces = transfer.step(start, start + rows, leaves=room[number])
        if number == anew:
            transfer.again()
            coverage = KvCoverage(positions, cached, LAYERS)
        for layers in pieces:
            transfer.left(KvRegion(start, start + rows, layers), memoryview(bytes(rows * len(layers) * layer_bytes)))
        start += rows
        for region in send_all(transfer, start, cached):
            coverage.add(region)
    assert transfer.is_sent
    assert coverage.is_full
    assert transfer.staged_bytes == 0


def test_what_is_sent_at_the_same_time_shares_the_time() -> None:
    rate = KvSendRate()
    for _ in range(4):
        rate.begin(10.0)
    for number in range(4):
        rate.end(11.0 + number, LEAST_PIECE_BYTES // 4, 100.0)
    assert rate.tokens_per_second == pytest.approx(400 / 4)


def test_idle_time_counts_nothing_and_the_average_follows() -> None:
    rate = KvSendRate()
    rate.begin(0.0)
    rate.end(1.0, LEAST_PIECE_BYTES // 2, 50.0)
    assert rate.tokens_per_second is None
    rate.begin(50.0)
    rate.end(51.0, LEAST_PIECE_BYTES // 2, 50.0)
    assert rate.tokens_per_second == pytest.approx(50.0)
    rate.begin(90.0)
    rate.end(90.5, LEAST_PIECE_BYTES, 100.0)
    assert rate.tokens_per_second == pytest.approx(50 + WEIGHT * 150)


def test_time_lost_to_a_failure_counts() -> None:
    rate = KvSendRate()
    rate.begin(0.0)
    rate.end(3.0)
    rate.begin(3.0)
    rate.end(4.0, LEAST_PIECE_BYTES, 100.0)
    assert rate.tokens_per_second == pytest.approx(25.0)
