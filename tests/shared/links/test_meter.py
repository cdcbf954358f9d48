"""Metered links: how fast what goes over them."""

import asyncio

import pytest
from structlog.testing import capture_logs

from livescale.shared.links.contract import Buffer, LinkError
from livescale.shared.links.link_path import MAPPED, SOCKETS, LinkPath
from livescale.shared.links.meter import FADE_SECONDS, MOST_PEERS, Meter, MeteredLink, PathBytes, Paths, PeerRates
from livescale.shared.process.telemetry import Telemetry
from tests.shared.links.conftest import Pair


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def moving(clock: Clock, meter: Meter, seconds: float, rate: float = 1e6) -> PeerRates:
    """Send a piece to one peer every 10 ms."""
    for _ in range(round(seconds * 100)):
        clock.now += 0.01
        meter.sent(b"w-1", round(rate / 100))
    return meter.rates[b"w-1"]


def test_bytes_are_counted_by_their_path_and_the_common_ones_are_there_at_zero() -> None:
    telemetry = Telemetry("worker", "worker-0")
    counted = PathBytes(telemetry)
    counted.moved(MAPPED, 3)
    counted.moved(LinkPath("rc_mlx5, GPUDirect", "network cards"), 5)
    counted.moved(MAPPED, 4)
    shown = telemetry.exposition()
    assert 'livescale_parameter_bytes_total{path="mapped"} 7.0' in shown
    assert 'livescale_parameter_bytes_total{path="rc_mlx5, GPUDirect"} 5.0' in shown
    assert 'livescale_parameter_bytes_total{path="cma"} 0.0' in shown


def test_steady_traffic_shows_as_its_rate() -> None:
    clock = Clock()
    assert moving(clock, Meter(clock), 5 * FADE_SECONDS).sent == pytest.approx(1e6, rel=0.02)


def test_it_rises_and_fades_within_seconds() -> None:
    clock = Clock()
    meter = Meter(clock)
    assert moving(clock, meter, FADE_SECONDS / 4).sent < 0.3e6
    full = moving(clock, meter, 5 * FADE_SECONDS).sent
    clock.now += FADE_SECONDS
    assert meter.rates[b"w-1"].sent == pytest.approx(full / 2.718, rel=0.01)


def test_a_peer_that_nothing_goes_to_any_more_is_forgotten() -> None:
    clock = Clock()
    meter = Meter(clock)
    moving(clock, meter, 1.0)
    clock.now += 20 * FADE_SECONDS
    assert meter.rates == {}


def test_peers_and_directions_are_told_apart() -> None:
    meter = Meter(Clock())
    meter.sent(b"w-1", 4000)
    meter.received(b"w-1", 2000)
    meter.received(b"w-2", 6000)
    half = 1 / FADE_SECONDS
    assert meter.rates == {b"w-1": PeerRates(4000 * half, 2000 * half), b"w-2": PeerRates(0.0, 6000 * half)}


async def test_both_ends_count_what_moved_and_the_link_itself_counts_nothing(pair: Pair) -> None:
    meters = Meter(Clock()), Meter(Clock())
    a, b = (MeteredLink(link, meter) for link, meter in zip((pair.a, pair.b), meters, strict=True))
    assert (a.address, b.address) == (pair.a.address, pair.b.address)
    to_b, to_a = await asyncio.gather(
        a.connect(b.address, timeout=60, channel=7), b.connect(a.address, timeout=60, channel=7)
    )
    assert to_b.path.name
    for one, other in ((to_b, to_a), (pair.to_b, pair.to_a)):  # metered, and as parameters go
        into = bytearray(10_000)
        await asyncio.gather(
            one.send(1, Buffer(memoryview(bytes(10_000))), timeout=60),
            other.receive(1, Buffer(memoryview(into)), timeout=60),
        )
    assert meters[0].rates == {b.address: PeerRates(sent=10_000 / FADE_SECONDS)}
    assert meters[1].rates == {a.address: PeerRates(received=10_000 / FADE_SECONDS)}
    await to_b.close()
    await to_a.close()


async def test_what_did_not_arrive_does_not_count(pair: Pair) -> None:
    meter = Meter(Clock())
    peer = await MeteredLink(pair.a, meter).connect(pair.b.address, timeout=60)
    with pytest.raises(LinkError):
        await peer.receive(3, Buffer(memoryview(bytearray(10))), timeout=0.05)
    assert meter.rates == {}


def test_a_path_is_said_when_it_is_new_with_its_reason() -> None:
    paths = Paths()
    with capture_logs() as lines:
        for path in (SOCKETS, SOCKETS, MAPPED):
            paths.note("worker-1", path)
    assert paths.by_peer == {"worker-1": "mapped"}
    assert [(line["event"], line["peer"], line["path"]) for line in lines] == [
        ("path_chosen", "worker-1", "sockets"),
        ("path_chosen", "worker-1", "mapped"),
    ]
    assert lines[0]["reason"] == "chosen by --transport socket"


def test_only_the_latest_peers_are_kept() -> None:
    paths = Paths()
    with capture_logs():
        for number in range(MOST_PEERS):
            paths.note(f"worker-{number}", SOCKETS)
        paths.note("worker-0", SOCKETS)
        paths.note("host-0", LinkPath("cma", "one machine"))
    assert len(paths.by_peer) == MOST_PEERS
    assert list(paths.by_peer)[-2:] == ["worker-0", "host-0"]
    assert "worker-1" not in paths.by_peer
