"""Which way parameters came: said once, and kept for those who look."""

import itertools

from structlog.testing import capture_logs

from livescale.shared.links.link_path import MAPPED, SOCKETS, LinkPath
from livescale.shared.links.meter import MOST_PEERS, Paths
from tests.shared.transfer.station import OpenStations, carry_out, chain, described, some_blocks


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


async def test_each_receiver_of_a_chain_learns_which_way_its_bytes_come(open_stations: OpenStations) -> None:
    stations = await open_stations(3)
    blocks = some_blocks()
    stations[0].hold(blocks)
    await carry_out(chain(*stations), stations, described(blocks))
    for upstream, station in itertools.pairwise(stations):
        assert station.paths.by_peer.keys() == {upstream.node.id}
        assert station.paths.by_peer[upstream.node.id] in {"cma", "posix", "sysv", "tcp", "sockets"}
