"""How long a chunk is waited for."""

from shared.transfer.chunks import Chunk
from shared.transfer.patience import Pace, Patience


def chunk(index: int) -> Chunk:
    return Chunk(number=index, block=0, index=index, offset=0, size=1)


def test_the_first_chunks_of_a_block_may_take_as_long_as_the_block_takes_to_be_there() -> None:
    pace = Pace(Patience(first=30.0), window=4)
    assert [pace.timeout(chunk(index)) for index in range(5)] == [30.0] * 4 + [1.0]


def test_on_a_fast_link_the_others_have_a_second() -> None:
    pace = Pace(Patience(), window=4)
    for number in range(100):
        pace.moved(7.0 + number * 0.01)
    assert pace.timeout(chunk(9)) == 1.0


def test_on_a_slow_link_they_have_eight_times_what_they_should_take() -> None:
    pace = Pace(Patience(least=1.0, factor=8.0), window=2)
    for now in (10.0, 10.5, 11.0, 11.5):
        pace.moved(now)
    assert pace.timeout(chunk(2)) == 8 * 2 * 0.375
