"""Modelled links with rates, under virtual time: who shares a link, who stops, and who gives up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from livescale.shared.links.contract import Buffer, LinkError, Peer
from livescale.shared.links.shaping import Cluster
from livescale.shared.simulation.fair_flows import FairFlows
from livescale.shared.simulation.fair_links import FairLink, FairShares
from livescale.shared.simulation.modelled_links import ModelledNetwork
from livescale.shared.simulation.processes import Process
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.simulation.virtual_time import run
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost

DELAY = 0.001
RATE = 1000
PLACES = ("a/0", "a/1", "b/0", "c/0")


def three_hosts() -> Topology:
    def host(id: str, gpus: int) -> TopologyHost:
        return TopologyHost(
            id=id,
            leaf="leaf",
            gpus=[Gpu(id=f"{id}/{n}", domain=id, memory_bytes=1 << 30, host_link=4 * RATE) for n in range(gpus)],
            memory_bytes=1 << 30,
            nic_in=RATE,
            nic_out=RATE,
            disk=RATE,
        )

    domains = [Domain(id=id, bandwidth=10 * RATE) for id in "abc"]
    hosts = [host(id, gpus) for id, gpus in (("a", 2), ("b", 1), ("c", 1))]
    return Topology(name="three", hosts=hosts, domains=domains, leaves=[Leaf(id="leaf")])


@dataclass
class Stage:
    """A link at each place, and when each send returned."""

    links: dict[str, FairLink]
    ended: dict[str, float] = field(default_factory=dict)

    async def connect(self, sender: str, receiver: str) -> Peer:
        return await self.links[sender].connect(self.links[receiver].address, timeout=1)

    async def send(self, name: str, peer: Peer, size: int, tag: int = 1) -> None:
        await peer.send(tag, Buffer(memoryview(bytes(size))), timeout=1)
        self.ended[name] = machine_time()


def play(act: Callable[[Stage], Awaitable[None]]) -> dict[str, float]:
    async def main() -> dict[str, float]:
        topology, network, shares = three_hosts(), ModelledNetwork(DELAY), FairShares(FairFlows())
        links = {place: FairLink(network.open(place.encode()), Cluster(topology, place), shares) for place in PLACES}
        stage = Stage(links)
        await act(stage)
        for link in links.values():
            await link.close()
        return stage.ended

    return run(main(), limit_seconds=1000)


def test_workers_of_one_host_share_its_card_and_have_links_of_their_own_within() -> None:
    async def act(stage: Stage) -> None:
        ways = {"far": ("a/0", "b/0"), "other": ("a/1", "c/0"), "near": ("a/0", "a/1")}
        peers = {name: await stage.connect(*way) for name, way in ways.items()}
        begun = machine_time()
        await asyncio.gather(*(stage.send(name, peer, RATE) for name, peer in peers.items()))
        stage.ended = {name: at - begun - DELAY for name, at in stage.ended.items()}

    assert play(act) == pytest.approx({"far": 2.0, "other": 2.0, "near": 0.1})


def test_a_message_arrives_once_its_bytes_would_have() -> None:
    async def act(stage: Stage) -> None:
        to_b, to_a = await stage.connect("a/0", "b/0"), await stage.connect("b/0", "a/0")
        begun, got = machine_time(), bytearray(RATE)
        sending = asyncio.create_task(stage.send("sent", to_b, RATE))
        await to_a.receive(1, Buffer(memoryview(got)), timeout=5)
        stage.ended["came"] = machine_time() - begun
        await sending

    assert play(act)["came"] == pytest.approx(1 + DELAY)


def test_who_gives_up_leaves_the_link_to_the_others() -> None:
    async def act(stage: Stage) -> None:
        one, other = await stage.connect("a/0", "b/0"), await stage.connect("a/1", "c/0")
        begun = machine_time()
        given_up = asyncio.create_task(stage.send("never", one, 10 * RATE))
        follows = asyncio.create_task(stage.send("follows", one, RATE, tag=2))
        kept = asyncio.create_task(stage.send("kept", other, RATE))
        await asyncio.sleep(1)
        given_up.cancel()
        await asyncio.wait([given_up, follows, kept])
        stage.ended = {name: at - begun - DELAY for name, at in stage.ended.items()}

    # Half of `kept` has passed after a second; both then have half the card.
    assert play(act) == pytest.approx({"kept": 2.0, "follows": 2.5})


def test_links_go_on_with_what_a_process_has_given_them_while_it_is_stopped() -> None:
    async def act(stage: Stage) -> None:
        one, other = await stage.connect("a/0", "b/0"), await stage.connect("a/1", "c/0")
        begun, process = machine_time(), Process()
        stopped = asyncio.create_task(stage.send("stopped", one, RATE), context=process.context())
        await asyncio.sleep(0.5)
        process.stop()
        await stage.send("other", other, RATE)
        await asyncio.sleep(5)
        assert "stopped" not in stage.ended
        process.go_on()
        await stopped
        stage.ended = {name: at - begun for name, at in stage.ended.items()}

    # `other` has half until the 500 bytes that `stopped` had left have passed, as if it ran; then the whole card.
    ended = play(act)
    assert ended["other"] == pytest.approx(2.0 + DELAY)
    assert ended["stopped"] > 7


def test_connecting_again_goes_on_with_the_same_flow_while_the_peer_is_the_same() -> None:
    async def act(stage: Stage) -> None:
        one = await stage.connect("a/0", "b/0")
        assert await stage.connect("a/0", "b/0") is one
        await one.close()
        assert await stage.connect("a/0", "b/0") is not one

    play(act)


def test_a_channel_that_is_closed_meanwhile_fails_the_send() -> None:
    async def act(stage: Stage) -> None:
        one = await stage.connect("a/0", "b/0")
        sending = asyncio.create_task(stage.send("sent", one, RATE))
        await asyncio.sleep(0.5)
        await stage.links["b/0"].close()
        with pytest.raises(LinkError, match="closed"):
            await sending

    play(act)
