"""Templates that run without end or measure: the kernel ends them, and no other request suffers."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.chat_template import ChatTemplate, RenderingWay, TemplateRefusal
from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.templates import Templates, rendering_way
from livescale.services.gateway.tools import FunctionDefinition, Tool
from tests.gateway.test_chat_template import noon

CHAT = [ChatMessage(role="user", content="語 🙂")]
SECONDS = 0.4
LINE = "{{ messages[0].content }}"


def made(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, noon)


async def refusal(templates: Templates, source: str) -> str:
    with pytest.raises(TemplateRefusal) as refused:
        await templates.render(made(source), CHAT)
    return str(refused.value)


async def test_what_is_rendered_beside_is_what_would_be_rendered_here() -> None:
    source = (
        "{{ bos_token }}{{ messages | tojson }}{{ strftime_now('%Y') }}{{ add_generation_prompt }}"
        "{{ more | tojson if more }}{{ messages[-1].content }}"
    )
    async with Templates(noon) as templates:
        for way in (RenderingWay(), RenderingWay(False, True), RenderingWay(variables={"more": {"a": [1, None]}})):
            assert await templates.render(made(source), CHAT, way) == made(source).render(CHAT, way)
        assert await refusal(templates, "{{ raise_exception('no') }}") == "no"


IMPOSSIBLE = [
    "{{ 'x' * 10**10 }}",
    "{{ [0] * 10**10 }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{{ 'x' | center(10**10) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 1 // 0 }}",
    "{{ messages[7] }}{{ messages[7].content.x }}",
    "{{ '\\ud800' }}",
]


async def test_what_a_template_cannot_have_is_a_refusal_and_the_next_is_served() -> None:
    async with Templates(noon) as templates:
        for source in IMPOSSIBLE:
            assert await refusal(templates, source)
            assert await templates.render(made(LINE), CHAT) == "語 🙂"


async def test_a_template_is_tried_again_where_a_clients_variables_made_it_endless() -> None:
    endless = made("{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}" + LINE)
    async with Templates(noon, SECONDS) as templates:
        with pytest.raises(TemplateRefusal, match=r"more than 0\.4 s of the processor"):
            await templates.render(endless, CHAT, RenderingWay(variables={"n": 99_999}))
        assert await templates.render(endless, CHAT, RenderingWay(variables={"n": 1})) == "語 🙂"


async def test_variables_that_cannot_be_sent_to_a_template_are_a_refusal() -> None:
    async with Templates(noon) as templates:
        with pytest.raises(TemplateRefusal, match="more than 64 bits"):
            await templates.render(made(LINE), CHAT, RenderingWay(variables={"large": 1 << 64}))


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 7 ** (7 ** 12) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
async def test_a_template_without_end_is_ended_and_not_tried_again(source: str) -> None:
    async with Templates(noon, SECONDS) as templates:
        endless = made(source)
        with beating() as beats, pytest.raises(TemplateRefusal, match=r"more than 0\.4 s of the processor"):
            await templates.render(endless, CHAT)
        assert len(beats) >= 5  # the event loop went on
        await templates._process.end()  # which would be started to try it again
        with pytest.raises(TemplateRefusal, match=r"more than 0\.4 s of the processor"):
            await templates.render(endless, CHAT)
        assert templates._process._process is None
        assert await templates.render(made(LINE), CHAT) == "語 🙂"


@contextmanager
def beating() -> Iterator[list[float]]:
    """Note the time whenever the event loop comes round."""
    loop, beats = asyncio.get_running_loop(), list[float]()
    next_beat: asyncio.Handle

    def beat() -> None:
        nonlocal next_beat
        beats.append(loop.time())
        next_beat = loop.call_later(0.02, beat)

    next_beat = loop.call_soon(beat)
    yield beats
    next_beat.cancel()


async def test_a_long_conversation_condemns_no_template() -> None:
    patient = made("{% for m in messages %}{% for i in range(9999) %}{% endfor %}{% endfor %}")
    async with Templates(noon, SECONDS) as templates:
        with pytest.raises(TemplateRefusal):
            await templates.render(patient, [ChatMessage(role="user", content="x")] * 50_000)
        assert await templates.render(patient, CHAT) == ""


async def test_a_process_that_was_killed_is_started_again_and_none_is_left() -> None:
    async with Templates(noon) as templates:
        await templates.render(made(LINE), CHAT)
        assert templates._process._process is not None
        pid = templates._process._process.pid
        os.killpg(pid, 9)  # with its child, which does the work
        await templates._process._process.wait()
        assert await templates.render(made(LINE), CHAT) == "語 🙂"
        pid = templates._process._process.pid
    assert not Path(f"/proc/{pid}").exists()  # noqa: ASYNC240


async def test_a_rendering_that_is_cancelled_leaves_no_answer_to_the_next() -> None:
    async with Templates(noon) as templates:
        await templates.render(made(LINE), CHAT)
        rendering = asyncio.create_task(templates.render(made("{% for i in range(99999) %}x{% endfor %}"), CHAT))
        await asyncio.sleep(0.005)  # until it has begun
        rendering.cancel()
        await asyncio.gather(rendering, return_exceptions=True)
        assert await templates.render(made(LINE), CHAT) == "語 🙂"


HELLO = [ChatMessage(role="user", content="hello")]


def test_a_chat_says_how_it_becomes_a_prompt() -> None:
    chat: dict[str, Any] = {"model": "m", "messages": HELLO}
    assert rendering_way(ChatRequest(**chat)) == RenderingWay()
    assert rendering_way(ChatRequest(**chat, add_generation_prompt=False)) == RenderingWay(False)
    assert rendering_way(ChatRequest(**chat, continue_final_message=True)) == RenderingWay(False, True)
    effort = {"reasoning_effort": "low", "enable_thinking": True}
    assert rendering_way(ChatRequest(**chat, reasoning_effort="low")).variables == effort
    said = ChatRequest(**chat, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}, documents=[])
    assert rendering_way(said).variables == {**effort, "enable_thinking": False, "documents": []}


def test_a_template_gets_the_tools_that_may_be_called() -> None:
    function = FunctionDefinition(name="f", description="F.", parameters={"type": "object"}, strict=False)
    chat: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": [Tool(function=function)]}
    told = {"name": "f", "description": "F.", "parameters": {"type": "object"}}
    assert rendering_way(ChatRequest(**chat)).variables == {"tools": [{"type": "function", "function": told}]}
    assert rendering_way(ChatRequest(**chat, tool_choice="none")).variables == {}
