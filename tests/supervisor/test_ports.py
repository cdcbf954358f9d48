"""Which ports are chosen for servers."""

import socket
from pathlib import Path

import pytest

from livescale.services.supervisor import ports
from livescale.services.supervisor.ports import free_port, free_ports, lasting_ports, outgoing_ports


def test_no_outgoing_connection_gets_the_port() -> None:
    outgoing = outgoing_ports()
    for _ in range(20):
        assert free_port() not in outgoing


def test_a_port_that_is_taken_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = listening.getsockname()[1]
        monkeypatch.setattr(ports, "lasting_ports", lambda outgoing: [taken] * ports.PORT_TRIES)
        with pytest.raises(OSError, match="of 100 ports that were tried 0 are free"):
            free_port()


@pytest.mark.parametrize(
    ("outgoing", "ports"),
    [
        (range(32_768, 61_000), range(10_000, 32_768)),
        (range(1_024, 50_000), range(50_000, 65_536)),
        (range(49_152, 65_536), range(10_000, 49_152)),
        (range(1_024, 65_536), range(10_000, 65_536)),  # there is no better one
    ],
)
def test_ports_for_servers_are_those_that_outgoing_connections_do_not_get(outgoing: range, ports: range) -> None:
    assert lasting_ports(outgoing) == ports


@pytest.mark.parametrize(
    ("said", "outgoing"),
    [("32768\t60999\n", range(32_768, 61_000)), ("nothing", range(32_768, 61_000)), ("2000 2999", range(2_000, 3_000))],
)
def test_the_system_says_which_ports_are_outgoing(
    said: str, outgoing: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(said)
    monkeypatch.setattr(ports, "OUTGOING", tmp_path / "range")
    assert outgoing_ports() == outgoing


def test_a_system_that_does_not_say_it_has_the_usual_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "OUTGOING", tmp_path / "none")
    assert outgoing_ports() == range(32_768, 61_000)


def test_several_ports_are_different_ones() -> None:
    assert len(set(free_ports("127.0.0.1", 16))) == 16


def test_a_host_of_another_machine_is_not_tried_again() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        free_ports("192.0.2.1", 1)
