"""Machines in network namespaces: what is refused, and that nothing of them stays."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from livescale.load.machines import CannotEmulate, ip, namespaces, network, owners

PROGRAM = "from livescale.load.machines import network\nwith network(['one'], '1mbit'):\n  print(flush=True); input()"


@contextmanager
def another_program() -> Iterator[subprocess.Popen[bytes]]:
    """Another program that has a network; the test that uses this ends it."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert program.pid in owners()
        try:
            yield program
        finally:
            program.kill()


def test_without_root_or_iproute2_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotEmulate, match="need root"), network(["one"], "1mbit"):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(CannotEmulate, match="ip and tc of iproute2 not found"), network(["one"], "1mbit"):
        pass


@pytest.mark.system
@pytest.mark.usefixtures("can_emulate")
def test_the_network_of_a_run_that_was_killed_is_cleared_by_the_next() -> None:
    with another_program() as killed:
        killed.kill()
    with network(["one"], "1mbit"):
        assert os.getpid() in owners()
        assert killed.pid not in owners()
    assert f"lvs{killed.pid}" not in ip("link")


@pytest.mark.system
@pytest.mark.usefixtures("can_emulate")
def test_a_process_that_is_told_to_end_removes_its_network() -> None:
    with another_program() as ended:
        ended.send_signal(signal.SIGTERM)
        assert ended.wait(timeout=120) == 128 + signal.SIGTERM
    assert ended.pid not in owners()
    assert f"lvs{ended.pid}" not in ip("link")


@pytest.mark.system
@pytest.mark.usefixtures("can_emulate")
def test_a_rate_that_makes_no_sense_leaves_nothing_behind() -> None:
    with (
        pytest.raises(CannotEmulate, match=r"network namespaces cannot be made here: .*rate"),
        network(["two"], "fast"),
    ):
        pass
    assert [name for name in namespaces() if name.startswith(f"livescale-{os.getpid()}-")] == []
