"""Ids and addresses that a process chooses itself."""

import secrets
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from livescale.shared.process.automatic import CannotChoose, address_towards, chosen, claim_number, id_prefix
from livescale.shared.runtime.settings import LinkSettings

NAMESPACE = f"test-{secrets.token_hex(8)}"
CLAIM = """
import sys
from livescale.shared.process.automatic import claim_number
with claim_number(sys.argv[1]) as number:
    print(number, flush=True)
    sys.stdin.read()
"""


def settings(**values: str) -> LinkSettings:
    return LinkSettings(namespace=NAMESPACE, host_name="Box_1.lan", **values)  # type: ignore[arg-type]


def test_each_process_gets_the_first_free_number_and_gives_it_back() -> None:
    with ExitStack() as others:
        first = others.enter_context(chosen(settings(id="auto"), "worker"))
        with chosen(settings(id="auto"), "worker") as second:
            assert [first.id, second.id] == ["worker-box-1-lan-0", "worker-box-1-lan-1"]
        third = others.enter_context(chosen(settings(id="auto"), "worker"))
        host = others.enter_context(chosen(settings(id="auto"), "host"))
        assert [third.id, host.id] == ["worker-box-1-lan-1", "host-box-1-lan-0"]


def test_system_ports_follow_the_numbers_of_ids() -> None:
    with ExitStack() as others:
        ports = [
            others.enter_context(chosen(settings(id="auto", system_bind=each), "worker")).system_bind
            for each in ("0.0.0.0:9101", "0.0.0.0:9101", "[::]:0")
        ]
        assert ports == ["0.0.0.0:9101", "0.0.0.0:9102", "[::]:0"]


def test_the_number_of_a_process_that_was_killed_is_free_again() -> None:
    command = [sys.executable, "-c", CLAIM, NAMESPACE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "0\n"
        with claim_number(NAMESPACE) as number:
            assert number == 1
        other.kill()
        other.wait(60)
    with claim_number(NAMESPACE) as number:
        assert number == 0


def test_what_is_named_stays_as_it_is() -> None:
    named = settings(id="w-7", bind="10.0.0.2")
    with chosen(named, "worker") as found:
        assert found == named


@pytest.mark.parametrize(
    ("host", "prefix"), [("a1b2c3", "worker-a1b2c3"), ("Node.EU-1", "worker-node-eu-1"), ("...", "worker")]
)
def test_ids_begin_with_service_and_machine(host: str, prefix: str) -> None:
    assert id_prefix("worker", host) == prefix


def test_the_address_is_the_one_from_which_the_bus_is_reached() -> None:
    assert address_towards("nats://localhost:4222") == "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 4222))
        except OSError:
            pytest.skip("this machine has no default route")
        assert address_towards("nats://u:p@198.51.100.1") == probe.getsockname()[0]
    with chosen(settings(bind="auto", nats_url="nats://127.0.0.1:1"), "host") as found:
        assert found.bind == "127.0.0.1"


def test_a_bus_that_has_no_address_is_an_error_with_a_remedy() -> None:
    with pytest.raises(CannotChoose, match=r"bind: auto: no way .* NATS server 'nowhere\.invalid'.*--bind"):
        address_towards("nats://nowhere.invalid:4222", patience=0.0)
