import os
import subprocess
import sys
from pathlib import Path

from livescale.services.supervisor.run_dir import clear_abandoned, run_directory
from livescale.services.supervisor.running import process_started

HOLD = """
import sys
from pathlib import Path
from livescale.services.supervisor.run_dir import run_directory
with run_directory(Path(sys.argv[1])) as directory:
    (directory / "nats.conf").write_text("secret")
    print(directory, flush=True)
    sys.stdin.read()
"""


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
