"""The file by which processes agree on what their links carry: it is shared, and no death or halt of a process blocks
it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from livescale.shared.links.calendars import FILE_BYTES, SharedCalendar
from livescale.shared.links.contract import LinkError
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.topology.paths import Resource

OUT, INTO = Resource("nic_out", "a", 100.0), Resource("nic_in", "a", 50.0)

TOPOLOGY = """
hosts:
  - {name: h, count: 2, memory: 1 GiB, nic: 100 MB/s, disk: 1 GB/s}
"""

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another(file: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the file's lock until it is killed."""
    command = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "links"


def test_bookings_of_one_process_count_for_the_others(file: Path) -> None:
    one, two = SharedCalendar(file), SharedCalendar(file)
    assert one.book((OUT,), 100, 5.0) == 6.0
    assert two.book((INTO,), 100, 5.0) == 7.0
    assert two.book((OUT, INTO), 100, 5.0) == 9.0
    assert one.book((OUT,), 100, 5.0) == 8.0
    one.close()
    two.close()
    late = SharedCalendar(file)
    assert late.book((OUT,), 100, 5.0) == 9.0
    late.close()


def test_a_process_that_slept_books_for_the_others_in_the_time_of_the_machine(file: Path) -> None:
    awake, slept = SharedCalendar(file), SharedCalendar(file, lambda: 3.0)
    assert awake.book((OUT,), 100, 5.0) == 6.0
    assert slept.book((OUT,), 100, 2.0) == 4.0
    assert awake.book((OUT,), 100, 5.0) == 8.0
    awake.close()
    slept.close()


def test_a_link_is_known_by_its_kind_and_its_owner(file: Path) -> None:
    calendar = SharedCalendar(file)
    owners = [Resource(kind, f"host{index}", 1.0) for index in range(300) for kind in ("nic_in", "nic_out")]
    for seconds, link in enumerate(owners):
        assert calendar.book((link,), seconds, 0.0) == seconds
    again = SharedCalendar(file)
    assert [again.book((link,), 1, 0.0) for link in owners] == [seconds + 1 for seconds in range(600)]
    calendar.close()
    again.close()


def test_a_process_that_dies_with_the_lock_lets_go_of_it(file: Path) -> None:
    calendar = SharedCalendar(file)
    with held_by_another(file) as process:
        process.kill()
    assert calendar.book((OUT,), 100, 5.0) == 6.0
    calendar.close()


def test_a_process_that_is_stopped_with_the_lock_does_not_stop_the_others(file: Path) -> None:
    calendar = SharedCalendar(file)
    with held_by_another(file) as process:
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert calendar.book((OUT,), 100, 5.0) == 6.0
        assert calendar.book((OUT,), 100, 5.0) == 7.0
        assert time.monotonic() - began < 60
    calendar.close()


@pytest.mark.parametrize("content", [b"nats: nats://127.0.0.1:4222\n", bytes(FILE_BYTES)])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(LinkError, match=r"shaping-file: .* is not a shaping file"):
        SharedCalendar(file)
    assert file.read_bytes() == content


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"shaping-file: .*No such file"):
        SharedCalendar(tmp_path / "nowhere" / "links")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"topology": ""}, "topology is missing: shaping-file limits links"),
        ({"topology": "absent.yaml"}, "topology: absent.yaml: No such file"),
        ({"place": "h2"}, "place: 'h2' is no host or GPU"),
        ({"link_rate": 1e6}, "link-rate and shaping-file"),
    ],
)
async def test_a_link_whose_shaping_is_not_plain_is_refused(
    file: Path, changes: dict[str, str | float], problem: str
) -> None:
    topology = file.with_name("two.yaml")
    topology.write_text(TOPOLOGY)
    told = {"topology": str(topology), "place": "h0", "shaping_file": str(file)} | changes
    with pytest.raises(LinkError, match=problem):
        await open_link(LinkSettings(transport="socket", **told))  # type: ignore[arg-type]
