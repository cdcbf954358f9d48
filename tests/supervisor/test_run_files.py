"""What a run leaves on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from livescale.services.supervisor.run_files import (
    NotOurs,
    RunningSystem,
    announce,
    clear_abandoned,
    find_running,
    make_place,
    pointer_path,
    process_started,
    run_directory,
)

URL, NATS_URL = "http://127.0.0.1:8000", "nats://127.0.0.1:4222"
ADDRESSES = {"url": URL, "nats_url": NATS_URL, "namespace": "default"}

HOLD = """
import sys
from pathlib import Path
from livescale.services.supervisor.run_files import run_directory
with run_directory(Path(sys.argv[1])) as directory:
    (directory / "nats.conf").write_text("secret")
    print(directory, flush=True)
    sys.stdin.read()
"""


def system(pid: int, started: int | None, before: RunningSystem | None = None) -> RunningSystem:
    return RunningSystem(
        pid=pid, pid_started=started or 0, url=URL, nats_url=NATS_URL, namespace="default", before=before
    )


def test_a_running_system_is_found_until_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "livescale" / "run.json"
    with announce(path, **ADDRESSES):
        found = find_running(path)
        assert found is not None
        assert (found.pid, found.nats_url) == (os.getpid(), "nats://127.0.0.1:4222")
        assert path.stat().st_mode & 0o777 == 0o600
    assert find_running(path) is None
    assert list(path.parent.iterdir()) == []


def test_the_note_of_a_dead_process_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as dead:
        started = process_started(dead.pid) or 0
    path.write_bytes(msgspec.json.encode(system(dead.pid, started)))
    assert find_running(path) is None


def test_the_note_of_a_process_that_had_this_pid_before_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(msgspec.json.encode(system(os.getpid(), 1)))
    assert find_running(path) is None


def test_a_note_that_is_garbage_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("{")
    assert find_running(path) is None


def test_the_note_of_a_later_system_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    started = process_started(os.getppid())
    assert started is not None
    later = system(os.getppid(), started)
    with announce(path, **ADDRESSES):
        path.write_bytes(msgspec.json.encode(later))
    assert find_running(path) == later


def test_a_system_is_found_again_when_those_that_were_started_later_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as dead:
        started = process_started(dead.pid) or 0
    with announce(path, **ADDRESSES):
        first = find_running(path)
        with announce(path, **{**ADDRESSES, "url": "http://127.0.0.1:8001"}):
            later = find_running(path)
            assert later is not None
            assert later.url == "http://127.0.0.1:8001"
        assert find_running(path) == first
        assert path.stat().st_mode & 0o777 == 0o600
        killed = system(dead.pid, started, first)
        path.write_bytes(msgspec.json.encode(killed))
        assert find_running(path) == first
    assert find_running(path) is None


def test_one_place_serves_all_terminals_and_folders_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIVESCALE_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    place = pointer_path()
    assert place.is_absolute()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert pointer_path() == place
    monkeypatch.setenv("LIVESCALE_STATE_DIR", str(tmp_path))
    assert pointer_path() == tmp_path / "run.json"


def test_a_place_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "livescale"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(NotOurs, match="LIVESCALE_STATE_DIR"):
        make_place(place / "run.json")
    place.rmdir()
    place.symlink_to(tmp_path)
    with pytest.raises(NotOurs):
        make_place(place / "run.json")


def test_the_place_is_for_its_owner_alone(tmp_path: Path) -> None:
    make_place(tmp_path / "livescale" / "run.json")
    assert (tmp_path / "livescale").stat().st_mode & 0o777 == 0o700


def test_a_run_directory_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    with run_directory(tmp_path) as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        assert [directory] == list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        process.kill()
    assert (left / "nats.conf").exists()
    with run_directory(tmp_path):
        assert not left.exists()


def test_directories_of_living_runs_and_of_others_stay(tmp_path: Path) -> None:
    me = os.getpid()
    mine = tmp_path / f"livescale-{me}-{process_started(me)}-abc"
    earlier = tmp_path / f"livescale-{me}-1-abc"  # of a process that had this pid before
    foreign = tmp_path / "livescale-notes"
    for directory in (mine, earlier, foreign):
        directory.mkdir()
    clear_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, foreign])
