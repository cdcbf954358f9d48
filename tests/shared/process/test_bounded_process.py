"""Work in a bounded process: answered, or ended by the kernel and tried no longer."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from livescale.shared.process.bounded_process import BoundedProcess, bare_environment

UPPER = "livescale.services.gateway.grammar_process"


async def test_an_answer_that_is_too_long_ends_the_process() -> None:
    process = BoundedProcess(UPPER, "5", largest_answer=3)
    assert await process.ask(b"\x82\xa4kind\xa5regex\xa6source\xa2a+") is None
    assert process._process is None
    await process.end()


async def test_a_process_that_died_is_started_again_and_none_is_left() -> None:
    process = BoundedProcess(UPPER, "5", largest_answer=1 << 20)
    work = b"\x82\xa4kind\xa5regex\xa6source\xa2a+"
    answer = await process.ask(work)
    assert answer is not None
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while process._process.returncode is None:  # noqa: ASYNC110 `wait` waits for the child, too, which lives on
            await asyncio.sleep(0.005)
    assert await process.ask(work) == answer
    assert process._process is not None
    pid = process._process.pid
    await process.end()
    assert not Path(f"/proc/{pid}").exists()  # noqa: ASYNC240


def test_secrets_of_the_parent_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVESCALE_API_KEY", "secret")
    assert not any("secret" in value for value in bare_environment().values())


async def test_after_work_that_took_too_much_the_same_process_answers() -> None:
    process = BoundedProcess(UPPER, "0.01", largest_answer=1 << 20)  # a quarter of the first, four of the second
    try:
        await process.start()
        assert process._process is not None
        pid = process._process.pid
        million = b"\x82\xa4kind\xa5regex\xa6source\xb0(a{1000}){10000}"
        assert await process.ask(million) is None
        assert b"a+" in (await process.ask(b"\x82\xa4kind\xa5regex\xa6source\xa2a+") or b"")
        assert process._process.pid == pid
    finally:
        await process.end()


def has_ended(status: Path) -> bool:
    """Whether a process has gone, or waits for nothing but to be asked how it ended."""
    try:
        return "zombie" in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_whoever_is_at_work_is_ended_with_the_process() -> None:
    process = BoundedProcess(UPPER, "5", largest_answer=1 << 20)
    await process.ask(b"\x82\xa4kind\xa5regex\xa6source\xa2a+")
    assert process._process is not None
    pid = process._process.pid
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()  # noqa: ASYNC240
    await process.end()
    async with asyncio.timeout(60):
        while not has_ended(Path(f"/proc/{child}/status")):  # noqa: ASYNC110 its parent is gone: nobody tells
            await asyncio.sleep(0.005)
