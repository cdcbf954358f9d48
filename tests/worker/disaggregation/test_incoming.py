"""KV on its way here: kept until it is laid down, each piece once and in order, and whole once all of it is."""

from livescale.services.worker.disaggregation.incoming import IncomingKv, reservation_name
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


def test_pieces_are_laid_down_in_order_and_none_twice() -> None:
    kv, buffer = incoming(), memoryview(bytearray(9))
    regions = [KvRegion(place, place + 1, range(LAYERS)) for place in range(3)]
    for region, size in zip(regions, (3, 9, 2), strict=True):
        kv.stage(region, buffer[:size])
    assert kv.received_bytes == kv.staged_bytes == 14
    for region, size in zip(regions, (3, 9, 2), strict=True):
        assert kv.next_bytes == size
        taken, data = kv.take()
        assert (taken, data.nbytes) == (region, size)
    assert (kv.next_bytes, kv.staged_bytes, kv.received_bytes) == (None, 0, 14)


def test_steps_wait_for_a_request_that_is_offered_and_has_little_left_to_lay_down() -> None:
    kv = incoming()
    kv.stage(KvRegion(0, POSITIONS, range(LAYERS)), memoryview(bytearray(MIB)))
    assert not kv.joins_soon(MIB)
    kv.is_offered = True
    assert kv.joins_soon(MIB)
    assert not kv.joins_soon(MIB - 1)
    kv.take()
    assert kv.joins_soon(0)
    kv.is_offered, kv.is_expected = False, True
    assert kv.joins_soon(0)
    assert not kv.joins_soon(-1)
    other = incoming()
    other.is_offered = True
    assert not other.joins_soon(MIB)


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
    where = incoming().slice(KvRegion(4, 9, range(1, 3)))
    assert (where.blocks, where.start, where.stop, where.layers) == (range(3, 5), 4, 9, range(1, 3))


def test_two_transfers_never_keep_blocks_under_one_name() -> None:
    names = {reservation_name(who, ticket, id) for who in ("p", "q") for ticket in (1, 2) for id in ("a", "b")}
    assert len(names) == 8
    assert not names & {"a", "b"}
