"""KV on its way here: kept until it is laid down, each piece once and in order, and whole once all of it is."""

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.disaggregation.incoming import (
    MOST_LAID_BYTES,
    MOST_STAGED_BYTES,
    IncomingKv,
    reservation_name,
)
from livescale.services.worker.disaggregation.pieces import KvRegion
from livescale.services.worker.scheduling.reservations import Reservation
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import Sequence
from livescale.shared.messages.disaggregation import Reserve
from livescale.shared.messages.transfers import Node
from tests.worker.requests import limits, submit

LAYERS, POSITIONS = 4, 30
MIB = 1 << 20


def incoming(cached: int = 0) -> IncomingKv:
    request = submit("a", range(POSITIONS - 1), generated=[7])
    sequence = Sequence(request, 0)
    sequence.blocks = range(3, 5)
    asked = Reserve(
        prefill=Node(id="p", place="worker", address=b"x"), ticket=1, secret=b"s" * 32, request=request, version="v"
    )
    return IncomingKv(asked, Scheduler(limits()), Reservation("r", sequence, cached), LAYERS, 0.0)


@given(st.lists(st.integers(1, 20 * MIB), max_size=6))
def test_pieces_are_laid_down_in_order_some_at_a_time_and_none_twice(sizes: list[int]) -> None:
    kv, buffer = incoming(), memoryview(bytearray(20 * MIB))
    regions = [KvRegion(place, place + 1, range(LAYERS)) for place in range(len(sizes))]
    for region, size in zip(regions, sizes, strict=True):
        kv.stage(region, buffer[:size])
        assert kv.has_room == (kv.staged_bytes < MOST_STAGED_BYTES)
    assert kv.received_bytes == kv.staged_bytes == sum(sizes)
    laid = list[KvRegion]()
    while taken := kv.take():
        assert len(taken) == 1 or sum(data.nbytes for _, data in taken) <= MOST_LAID_BYTES
        laid += [region for region, _ in taken]
    assert (laid, kv.staged_bytes, kv.received_bytes) == (regions, 0, sum(sizes))


def test_steps_wait_for_a_request_that_is_offered_and_has_little_left_to_lay_down() -> None:
    kv = incoming()
    kv.stage(KvRegion(0, POSITIONS, range(LAYERS)), memoryview(bytearray(MOST_LAID_BYTES)))
    assert not kv.joins_soon
    kv.is_offered = True
    assert kv.joins_soon
    kv.stage(KvRegion(0, 1, range(1)), memoryview(bytearray(1)))
    assert not kv.joins_soon
    kv.take()
    assert kv.joins_soon
    kv.is_offered, kv.is_expected = False, True
    assert kv.joins_soon
    other = incoming()
    other.is_offered = True
    assert not other.joins_soon


def test_it_is_whole_once_everything_lies_here_and_nothing_writes_any_more() -> None:
    kv = incoming(cached=16)
    kv.laid.add(KvRegion(16, POSITIONS, range(LAYERS - 1)))
    kv.reservation.written = False
    assert not kv.is_whole
    kv.laid.add(KvRegion(16, POSITIONS, range(LAYERS - 1, LAYERS)))
    assert kv.is_whole
    kv.reservation.written = True
    assert not kv.is_whole
    kv.reservation.written = kv.reservation.wanted = False
    assert (kv.is_whole, kv.is_over) == (False, True)


def test_a_piece_goes_into_the_blocks_that_are_kept_for_its_request() -> None:
    kv = incoming()
    region = KvRegion(4, 9, range(1, 3))
    [(where, data)] = kv.pieces([(region, memoryview(b"kv"))])
    assert (where.blocks, where.start, where.stop, where.layers) == (range(3, 5), 4, 9, range(1, 3))
    assert (bytes(data), kv.positions) == (b"kv", POSITIONS)


def test_two_transfers_never_keep_blocks_under_one_name() -> None:
    names = {reservation_name(who, ticket, id) for who in ("p", "q") for ticket in (1, 2) for id in ("a", "b")}
    assert len(names) == 8
    assert not names & {"a", "b"}
