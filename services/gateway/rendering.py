"""How a chat's conversation becomes a prompt, by what its request says of the template. Pure."""

from typing import Any

from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.chat_template import RenderingWay
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.tools import for_template

RESERVED_VARIABLES = frozenset(
    ("messages", "add_generation_prompt", "continue_final_message", "chat_template", "tools")
)


def check_rendering(body: ChatRequest) -> None:
    """Check what is said of the template. Raises ApiError 400."""
    if body.add_generation_prompt and body.continue_final_message:
        raise bad_request(
            "'add_generation_prompt' and 'continue_final_message' exclude each other; give one of them.",
            param="continue_final_message",
        )
    reserved = sorted(RESERVED_VARIABLES.intersection(body.chat_template_kwargs or ()))
    if reserved:
        raise bad_request(
            f"'chat_template_kwargs' has {reserved[0]!r}, which the request says elsewhere; leave it out.",
            param=f"chat_template_kwargs.{reserved[0]}",
        )


def rendering_way(body: ChatRequest) -> RenderingWay:
    """How the conversation becomes a prompt. What `chat_template_kwargs` says goes before other parameters."""
    variables: dict[str, Any] = {}
    if body.documents is not None:
        variables["documents"] = body.documents
    if body.tools and body.tool_choice != "none":
        variables["tools"] = for_template(body.tools)
    if body.reasoning_effort is not None:
        variables |= {"reasoning_effort": body.reasoning_effort, "enable_thinking": body.reasoning_effort != "none"}
    begin = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
    return RenderingWay(begin, body.continue_final_message, {**variables, **(body.chat_template_kwargs or {})})
