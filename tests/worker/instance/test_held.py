"""What a worker tells of the instance that it holds."""

import asyncio

from tests.worker.fleet import fleet
from tests.worker.serving import random_prompt, submit


async def test_an_instance_says_for_how_long_nobody_asked_it_anything() -> None:
    async with fleet("w-1") as made:
        await made.load("w-1", made.me)
        made.feed("w-1")
        await made.whole("w-1")
        await made.serve("w-1")
        await asyncio.sleep(0.2)  # the seconds that are told
        began = asyncio.get_running_loop().time()
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=4))
        await made.finished("a")
        [event] = [one for one in made.instances if one.what == "first_token"]
        assert 0.2 <= event.unasked_seconds < 0.2 + began
        assert [one.unasked_seconds for one in made.instances if one.what == "serving"] == [0.0]
