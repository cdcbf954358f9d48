"""Renders chat templates in a process beside the gateway."""

from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.bounded_work import BoundedWork
from livescale.services.gateway.chat_template import USUAL, ChatTemplate, RenderingWay, TemplateRefusal, Wall
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.template_process import MEMORY_BYTES, RenderedPrompt, Rendering
from livescale.services.gateway.tools import for_template

PROCESSOR_SECONDS = 2.0  # for one rendering
LARGEST_PROMPT = 64 << 20
SMALL_CONVERSATION = 64 << 10  # bytes; a template that cannot render this much in its time never will

log = structlog.get_logger()


class Templates(BoundedWork):
    """Renders one conversation after the other. A template that fails on a small conversation is not tried again."""

    def __init__(self, wall: Wall, processor_seconds: float = PROCESSOR_SECONDS) -> None:
        self._wall = wall
        super().__init__("template_process", processor_seconds, MEMORY_BYTES, LARGEST_PROMPT)

    async def render(self, template: ChatTemplate, messages: list[ChatMessage], way: RenderingWay = USUAL) -> str:
        """The prompt of a conversation. Raises TemplateRefusal."""
        work = self._encoded(template.source, template.special_tokens, messages, way)
        async with self._turn:
            if template.condemned:
                raise self._overrun()
            answer = await self._process.ask(work)
            if answer is None:
                is_small = len(work) - len(template.source) <= SMALL_CONVERSATION
                template.condemned = is_small and not way.variables  # else another client's may be rendered
                log.warning("chat_template_overran", conversation_bytes=len(work), condemned=template.condemned)
                raise self._overrun()
        return _prompt_of(answer)

    async def render_source(
        self, source: str, special_tokens: Mapping[str, str], messages: list[ChatMessage], way: RenderingWay = USUAL
    ) -> str:
        """The prompt of a conversation by a template that its client brought. Raises TemplateRefusal."""
        work = self._encoded(source, special_tokens, messages, way)
        async with self._turn:
            answer = await self._process.ask(work)
        if answer is None:
            raise self._overrun()
        return _prompt_of(answer)

    def _encoded(
        self, source: str, special_tokens: Mapping[str, str], messages: list[ChatMessage], way: RenderingWay
    ) -> bytes:
        rendering = Rendering(source, dict(special_tokens), messages, way, self._wall())
        try:
            return msgspec.msgpack.encode(rendering)
        except RecursionError:
            raise TemplateRefusal("they are nested too deeply") from None
        except OverflowError:
            raise TemplateRefusal("they, or variables of the template, have a number of more than 64 bits") from None

    def _overrun(self) -> TemplateRefusal:
        return TemplateRefusal(self._overran)


def _prompt_of(answer: bytes) -> str:
    rendered = msgspec.msgpack.decode(answer, type=RenderedPrompt)
    if rendered.prompt is None:
        raise TemplateRefusal(rendered.refusal)
    return rendered.prompt


async def render_chat(
    templates: Templates,
    text: CheckpointText,
    messages: list[ChatMessage],
    way: RenderingWay = USUAL,
    source: str | None = None,
) -> str:
    """The conversation's prompt by the checkpoint's template, or by the one that its client gives. Raises ApiError 400
    where there is none, or it refuses the messages."""
    try:
        if source is not None:
            return await templates.render_source(source, text.special_tokens, messages, way)
        if text.template is None:
            raise bad_request("This model has no chat template; use /v1/completions.", param="model")
        return await templates.render(text.template, messages, way)
    except TemplateRefusal as error:
        if source is not None:
            raise bad_request(f"'chat_template' cannot be used: {error}", param="chat_template") from None
        raise bad_request(f"The model's chat template refuses the messages: {error}", param="messages") from None


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
