"""The link that is shaped, under virtual time."""

import asyncio
from dataclasses import dataclass, field

import pytest

from livescale.shared.links.calendars import LocalCalendar
from livescale.shared.links.contract import Buffer, LinkError, Peer
from livescale.shared.links.link_path import LinkPath
from livescale.shared.links.shaping import Cluster, PeerRoutes, ShapedLink, SingleRate
from livescale.shared.simulation.virtual_time import run
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost
from tests.shared.transfer.virtual_link import NO_LINK

KIB = 1024
GIB = 1 << 30
RATE = 100 * KIB * KIB


@dataclass
class RecordingLink:
    """A link without limits that is its own only peer; it notes when each message left, and to which peer."""

    address: bytes = b"beneath"
    sent: list[tuple[int, float]] = field(default_factory=list)
    connected: list[bytes] = field(default_factory=list)
    path: LinkPath = NO_LINK

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        self.connected.append(address)
        return self

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        self.sent.append((tag, asyncio.get_running_loop().time()))

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        """Receive without shaping."""

    async def close(self) -> None:
        """Do nothing: there is nothing to free."""


def shaped(routes: PeerRoutes) -> tuple[RecordingLink, ShapedLink]:
    beneath = RecordingLink()
    return beneath, ShapedLink(beneath, routes, LocalCalendar())


def two_hosts() -> Topology:
    hosts = [
        TopologyHost(
            id=id,
            leaf="leaf",
            gpus=[Gpu(id=f"{id}/{index}", domain=id, memory_bytes=GIB, host_link=4 * RATE) for index in range(2)],
            memory_bytes=GIB,
            nic_in=RATE,
            nic_out=RATE,
            disk=RATE,
        )
        for id in ("a", "b")
    ]
    domains = [Domain(id=id, bandwidth=10 * RATE) for id in ("a", "b")]
    return Topology(name="two", hosts=hosts, domains=domains, leaves=[Leaf(id="leaf")])


async def send(peer: Peer, size: int, tags: range) -> None:
    await asyncio.gather(*(peer.send(tag, Buffer(memoryview(bytes(size))), timeout=1) for tag in tags))


def test_messages_leave_in_the_order_of_their_calls_at_the_rate() -> None:
    async def send_four() -> list[tuple[int, float]]:
        beneath, link = shaped(SingleRate(RATE))
        peer = await link.connect(b"peer", timeout=1)
        await asyncio.sleep(10)
        await send(peer, RATE // 2, range(4))
        return beneath.sent

    sent = run(send_four())
    assert [tag for tag, _ in sent] == [0, 1, 2, 3]
    assert [at for _, at in sent] == pytest.approx([10.5, 11.0, 11.5, 12.0])


def test_all_peers_of_a_single_rate_share_it_evenly_whatever_their_messages_sizes() -> None:
    async def send_to_two() -> list[tuple[int, float]]:
        beneath, link = shaped(SingleRate(RATE))
        one, two = [await link.connect(address, timeout=1) for address in (b"one", b"two")]
        await asyncio.gather(send(one, RATE, range(1)), send(two, RATE // 100, range(1, 101)))
        return beneath.sent

    sent = dict(run(send_to_two()))
    assert sent[0] == pytest.approx(2.0, rel=0.02)
    assert sent[100] == pytest.approx(2.0, rel=0.02)


def test_a_sender_that_stops_waiting_leaves_the_others_in_order() -> None:
    async def abandon_one() -> list[tuple[int, float]]:
        beneath, link = shaped(SingleRate(RATE))
        peer = await link.connect(b"peer", timeout=1)
        abandoned = asyncio.create_task(send(peer, RATE, range(1)))
        await asyncio.sleep(0.495)
        abandoned.cancel()
        await send(peer, RATE, range(1, 2))
        return beneath.sent

    ((tag, at),) = run(abandon_one())
    assert tag == 1
    assert at == pytest.approx(1.51, abs=0.01)  # what was booked for the first one is lost: two pieces


def test_connecting_again_goes_on_with_the_same_flow_while_the_peer_is_the_same() -> None:
    async def connect_twice() -> bool:
        _, link = shaped(SingleRate(RATE))
        return await link.connect(b"peer", timeout=1) is await link.connect(b"peer", timeout=1)

    assert run(connect_twice())


def test_a_place_in_the_cluster_is_part_of_the_address_and_decides_which_links_a_flow_uses() -> None:
    async def send_from_a_gpu() -> dict[int, float]:
        topology = two_hosts()
        beneath, link = shaped(Cluster(topology, "a/0"))
        addresses = [shaped(Cluster(topology, place))[1].address for place in ("a", "a/1", "b", "b/1")]
        host, near, other, far = [await link.connect(address, timeout=1) for address in addresses]
        assert beneath.connected == [beneath.address] * 4
        at_once = (send(peer, RATE, range(tag, tag + 1)) for tag, peer in enumerate((host, near, other, far)))
        await asyncio.gather(*at_once)
        return dict(beneath.sent)

    times = run(send_from_a_gpu())
    assert times[0] == pytest.approx(1 / 4, rel=0.02)  # over the host link
    assert times[1] == pytest.approx(1 / 10, rel=0.02)  # within the domain
    assert [times[2], times[3]] == pytest.approx([2, 2], rel=0.02)  # both over the host's network card


@pytest.mark.parametrize("address", [b"tcp:10.0.0.1:99", b"at:c tcp:10.0.0.1:99", b"at:\xff\xff", b""])
def test_a_peer_that_is_at_no_place_of_the_cluster_is_refused(address: bytes) -> None:
    async def connect() -> None:
        _, link = shaped(Cluster(two_hosts(), "a/0"))
        await link.connect(address, timeout=1)

    with pytest.raises(LinkError, match="at no place of topology two"):
        run(connect())


def test_a_process_at_no_place_of_the_cluster_is_refused() -> None:
    with pytest.raises(LinkError, match="place: 'a/2' is no host or GPU of topology two"):
        Cluster(two_hosts(), "a/2")
