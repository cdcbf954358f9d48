"""The kernel ends a bounded process whose work takes too much. It starts quickly, as its first piece of work waits."""

import subprocess
import sys

import pytest

from livescale.shared.process.bounded_answers import LENGTH_BYTES, framed


@pytest.mark.parametrize(
    "harm", ["while True: pass", "bytes(1 << 32)", "sys.exit(3)"], ids=["no end", "much memory", "an end"]
)
def test_work_that_takes_too_much_ends_the_process(harm: str) -> None:
    program = f"""
import sys
from livescale.shared.process.bounded_answers import answer_all
def answer(data):
    {harm}
answer_all(answer, sys.stdin.buffer, sys.stdout.buffer, 0.1, 64 << 20)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input=framed(b"work"), capture_output=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert len(done.stdout) < LENGTH_BYTES


@pytest.mark.parametrize("module", ["template_process", "grammar_process", "image_process"])
def test_no_event_loop_and_no_other_bodies_are_imported_by_those_of_the_gateway(module: str) -> None:
    program = f"""
import sys
import livescale.services.gateway.{module}
assert not {{"asyncio", "livescale.services.gateway.bodies", "livescale.shared.bus"}} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
