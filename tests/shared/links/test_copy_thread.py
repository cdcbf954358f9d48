"""Copies are made one after the other in a thread, and who gives one up waits until nothing is written any more."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from functools import partial

import pytest

from livescale.shared.links.copy_thread import CopyThread


@pytest.fixture
async def copies() -> AsyncIterator[CopyThread]:
    copies = CopyThread(asyncio.get_running_loop())
    yield copies
    copies.close()


async def test_copies_are_made_in_order_in_one_thread_that_is_not_the_loops(copies: CopyThread) -> None:
    made = list[tuple[int, int]]()

    def copy(number: int) -> bool:
        made.append((number, threading.get_ident()))
        return number % 2 == 0

    begun = [copies.begin(partial(copy, number)) for number in range(4)]
    assert await asyncio.gather(*begun) == [True, False, True, False]
    assert [number for number, _ in made] == [0, 1, 2, 3]
    assert len({thread for _, thread in made} | {threading.get_ident()}) == 2


async def test_no_thread_is_there_before_the_first_copy_nor_after_the_end() -> None:
    before = threading.active_count()
    copies = CopyThread(asyncio.get_running_loop())
    assert threading.active_count() == before
    assert await copies.begin(lambda: True)
    assert threading.active_count() == before + 1
    copies.close()
    copies.close()
    assert threading.active_count() == before


async def test_what_goes_wrong_is_raised_where_it_is_waited_for_and_the_next_copy_is_made(copies: CopyThread) -> None:
    def fail() -> bool:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await copies.begin(fail)
    assert await copies.begin(lambda: True)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_copy_that_was_given_up_goes_on_until_it_has_settled(copies: CopyThread, fails: bool) -> None:
    unheard = list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    go_on, over = threading.Event(), threading.Event()

    def copy() -> bool:
        go_on.wait(60)
        over.set()
        if fails:
            raise OSError("gone")
        return True

    copies.begin(copy).cancel()
    settling = asyncio.create_task(copies.settle())
    await asyncio.sleep(0)
    assert not over.is_set()
    go_on.set()
    await settling
    assert over.is_set()
    gc.collect()
    assert not unheard


async def test_what_a_copy_held_is_let_go_with_it(copies: CopyThread) -> None:
    class Held:
        def copy(self) -> bool:
            return True

    held = Held()
    gone = weakref.ref(held)
    assert await copies.begin(held.copy)
    del held
    await copies.settle()
    assert gone() is None


async def test_what_was_begun_is_done_before_the_thread_ends() -> None:
    copies, made = CopyThread(asyncio.get_running_loop()), list[int]()

    def copy(number: int) -> bool:
        made.append(number)
        return True

    for number in range(3):
        copies.begin(partial(copy, number))
    copies.close()
    assert made == [0, 1, 2]
