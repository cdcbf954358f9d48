"""The token bucket, under a clock of its own, and the link it shapes, under virtual time."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.links.contract import Buffer, Peer
from shared.links.shaping import ShapedLink, TokenBucket
from shared.virtual_time import run

MIB = 1 << 20


def test_a_sender_that_wakes_late_still_reaches_the_rate_within_two_percent() -> None:
    bucket, now, rate = TokenBucket(100e6), 5.0, 100e6
    for number in range(400):
        now = max(now, bucket.take(MIB, now)) + (0.0015 if number % 2 else 0.0002)
    assert abs(400 * MIB / (now - 5.0) / rate - 1) < 0.02


def test_an_idle_bucket_saves_up_for_one_message_only() -> None:
    bucket = TokenBucket(100.0)
    assert bucket.take(100, 50.0) == 50.0
    assert bucket.take(100, 50.0) == 51.0
    assert bucket.take(100, 50.0) == 52.0
    assert bucket.take(100, 99.0) == 99.0


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 3)), min_size=1, max_size=60),
    st.sampled_from([1.0, 100.0, 12345.0]),
)
def test_no_interval_carries_more_than_the_rate_and_one_message(messages: list[tuple[int, float]], rate: float) -> None:
    bucket, now, departures = TokenBucket(rate), 0.0, []
    for size, pause in messages:
        now += pause
        departures.append((bucket.take(size, now), size))
    times = [at for at, _ in departures]
    assert times == sorted(times)
    for first in range(len(departures)):
        for last in range(first, len(departures)):
            carried = sum(size for _, size in departures[first + 1 : last + 1])
            seconds = departures[last][0] - departures[first][0]
            assert carried <= rate * seconds + max(size for _, size in departures) + 1e-6


class RecordingLink:
    """A link without limits; notes when each message left. Its own only peer."""

    address = b"here"

    def __init__(self) -> None:
        self.sent: list[tuple[int, float]] = []

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        return self

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        self.sent.append((tag, asyncio.get_running_loop().time()))

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        """Not shaped."""

    async def close(self) -> None:
        """Nothing to free."""


def test_all_peers_of_a_link_share_its_rate() -> None:
    async def send_to_two() -> list[tuple[int, float]]:
        inner = RecordingLink()
        link = ShapedLink(inner, 100.0)
        peers = [await link.connect(address, timeout=1) for address in (b"one", b"two")]
        buffer = Buffer(memoryview(bytes(50)))
        await asyncio.sleep(10)
        await asyncio.gather(*(peers[tag % 2].send(tag, buffer, timeout=1) for tag in range(4)))
        return inner.sent

    sent = run(send_to_two())
    assert [tag for tag, _ in sent] == [0, 1, 2, 3]
    assert [at for _, at in sent] == pytest.approx([10.0, 10.5, 11.0, 11.5])
