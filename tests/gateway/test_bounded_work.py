"""Processes that work for the gateway: what was started before anyone needs it does the first piece of work."""

from livescale.services.gateway.bounded_work import BoundedWork
from livescale.services.gateway.grammars import Grammars
from livescale.services.gateway.templates import Templates
from tests.gateway.test_chat_template import noon
from tests.gateway.test_grammars import constraint_regex
from tests.gateway.test_templates import CHAT, LINE, made


def pid(work: BoundedWork) -> int:
    """The id of the process that does this work; it has one."""
    assert work._process._process is not None
    return work._process._process.pid


async def test_a_process_that_was_started_before_does_the_first_work() -> None:
    async with Templates(noon) as templates, Grammars() as grammars:
        await templates.start()
        await grammars.start()
        started = pid(templates), pid(grammars)
        await templates.render(made(LINE), CHAT)
        await grammars.check(constraint_regex("a+"))
        assert (pid(templates), pid(grammars)) == started
