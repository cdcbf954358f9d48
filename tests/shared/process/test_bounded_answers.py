"""The kernel ends work that takes too much, and the next piece is answered without a start of a process."""

import subprocess
import sys

import pytest

from livescale.shared.process.bounded_answers import LENGTH_BYTES, NO_ANSWER, framed

PROGRAM = """
import os, signal, sys
from livescale.shared.process.bounded_answers import answer_all
def answer(data):
    if data == b"harm":
        {harm}
    return data.upper()
answer_all(answer, sys.stdin.buffer, sys.stdout.buffer, 0.1, 64 << 20)
"""


def answered(harm: str, *work: bytes) -> tuple[int, list[bytes]]:
    """The exit code of a process for which some work does harm, and what it answered to each piece until it ended."""
    command = [sys.executable, "-c", PROGRAM.format(harm=harm)]
    answers = list[bytes]()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for piece in work:
            process.stdin.write(framed(piece))
            process.stdin.flush()
            if not (length := process.stdout.read(LENGTH_BYTES)):
                break
            answers.append(process.stdout.read(int.from_bytes(length)))
        process.stdin.close()
        return process.wait(60), answers


def test_work_that_takes_too_much_has_no_answer_and_what_follows_has() -> None:
    assert answered("while True: pass", b"harm", b"harm", b"more") == (0, [NO_ANSWER, NO_ANSWER, b"MORE"])


@pytest.mark.parametrize("harm", ["os.abort()", "os.kill(os.getpid(), signal.SIGSEGV)"], ids=["memory", "the stack"])
def test_the_same_holds_for_what_compiled_code_dies_of(harm: str) -> None:
    assert answered(harm, b"harm", b"more") == (0, [NO_ANSWER, b"MORE"])


@pytest.mark.parametrize(
    "harm",
    ["bytes(1 << 32)", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"],
    ids=["much memory", "an end", "a kill"],
)
def test_what_else_ends_the_work_ends_the_process(harm: str) -> None:
    code, answers = answered(harm, b"harm", b"more")
    assert (code != 0, answers) == (True, [])


@pytest.mark.parametrize("module", ["template_process", "grammar_process", "image_process"])
def test_no_event_loop_and_no_other_bodies_are_imported_by_those_of_the_gateway(module: str) -> None:
    program = f"""
import sys
import livescale.services.gateway.{module}
assert not {{"asyncio", "livescale.services.gateway.bodies", "livescale.shared.bus"}} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=240, check=False).returncode == 0
