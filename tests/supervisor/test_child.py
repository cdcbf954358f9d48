"""What runs in a new process before its own program."""

import os
import subprocess
import sys

from livescale.services.supervisor.processes import SHIM


def run_shim(parent: int, *program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "-S", str(SHIM), str(parent), "0", *program]
    return subprocess.run(words, check=False, capture_output=True, text=True)


def test_it_becomes_the_program_and_ends_as_that_does() -> None:
    done = run_shim(os.getpid(), "/bin/sh", "-c", "echo here; exit 3")
    assert (done.returncode, done.stdout) == (3, "here\n")


def test_a_program_that_is_not_there_is_named() -> None:
    done = run_shim(os.getpid(), "/nowhere/program")
    assert (done.returncode, done.stderr) == (1, "/nowhere/program: No such file or directory\n")


def test_without_the_parent_that_started_it_it_ends_at_once() -> None:
    done = run_shim(os.getppid(), "/bin/sh", "-c", "echo here")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "the supervisor is gone\n")
