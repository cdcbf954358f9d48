"""A cable that is pulled in the middle of a message: both ends live, and go on once it is plugged in again."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from livescale.load.machines import CARD, CannotEmulate, Network, network

pytestmark = [pytest.mark.slow, pytest.mark.system]
ENDS = ("send", "receive")
MOVING_SECONDS, CUT_SECONDS = 1.0, 4.0  # of real time, as the processes and their network are real
ROOT = Path(__file__).parents[3]


@pytest.fixture
def machines() -> Iterator[Network]:
    try:
        with network(ENDS, "400mbit") as made:
            yield made
    except CannotEmulate as reason:
        pytest.skip(str(reason))


def test_a_machine_that_was_asked_for_while_the_link_was_down_is_reached_later(
    machines: Network, tmp_path: Path
) -> None:
    """UCX reads the routes once in the life of a process: they have to be those of a machine whose links are up."""
    started = []
    try:
        for end, other in (ENDS, ENDS[::-1]):
            (tmp_path / end).mkdir()
            words = ("-m", "tests.shared.links.late_end", machines.address(end), str(tmp_path / end))
            process = subprocess.Popen(
                machines.inside(end, sys.executable, *words),
                env={**os.environ, "UCX_TLS": "tcp"},
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            assert answer(process) == "opened"
            (tmp_path / end / "peer").symlink_to(tmp_path / other / "mine")
        asking = started[0]
        device = ("ip", "link", "set", "dev", CARD)
        subprocess.run(machines.inside("send", *device, "down"), check=True)
        assert answer(asking, "connect") != "connected"
        subprocess.run(machines.inside("send", *device, "up"), check=True)
        assert answer(asking, "connect") == "connected"
    finally:
        for process in started:
            process.kill()
            process.communicate()


def answer(process: subprocess.Popen[str], order: str | None = None) -> str:
    """What the process says next, after an order if there is one."""
    assert process.stdin is not None
    assert process.stdout is not None
    if order is not None:
        process.stdin.write(f"{order}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_process_whose_send_is_stuck_in_a_cut_network_lives_on(machines: Network, tmp_path: Path) -> None:
    """UCX used a connection after it was freed, where that was closed by force while it could not send."""
    ends = [
        subprocess.Popen(
            machines.inside(
                end, sys.executable, "-m", "tests.shared.links.sending_end", end, machines.address(end), str(tmp_path)
            ),
            env={**os.environ, "UCX_TLS": "tcp"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for end in ENDS
    ]
    try:
        assert [end.stdout.readline() for end in ends if end.stdout is not None] == ["connected\n"] * 2
        time.sleep(MOVING_SECONDS)
        machines.pull_cable("send")
        time.sleep(CUT_SECONDS)
        machines.plug_cable("send")
        said = [end.communicate(timeout=60.0)[0].splitlines() for end in ends]
    finally:
        for end in ends:
            end.kill()
            end.wait()
    assert [end.returncode for end in ends] == [0, 0]
    assert "took more than 1 s" in said[0][0]
    # The receiver hears of it as soon as the network is back, long before its own patience ends.
    assert "the peer closed the connection" in said[1][0]
    assert [lines[-1] for lines in said] == ["moved", "moved"]
