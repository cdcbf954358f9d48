"""Dockerfiles/base.sh: what it lacks it names at once, before it has fetched anything."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

BASE = Path(__file__).parents[2] / "Dockerfiles/base.sh"


def run(directory: Path, programs: Sequence[str]) -> tuple[int, str]:
    """How it ends for a user that is not root, and what it complains of, where only these programs are installed."""
    for program in programs:
        (directory / program).symlink_to("/bin/true")
    (directory / "id").write_text("#!/bin/sh\necho 1000\n")
    (directory / "id").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(BASE), "livescale-base"],
        env={"PATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        ([], "needs debootstrap, which is not installed"),
        (["debootstrap"], "needs docker, which is not installed"),
        (["debootstrap", "docker"], "needs root, as debootstrap does; run it by sudo"),
    ],
)
def test_what_it_lacks_is_named(tmp_path: Path, there: list[str], complaint: str) -> None:
    assert run(tmp_path, there) == (1, f"base.sh: {complaint}\n")
