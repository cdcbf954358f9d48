from typing import Any

from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.chat_template import RenderingWay
from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.rendering import rendering_way
from livescale.services.gateway.tools import FunctionDefinition, Tool

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
