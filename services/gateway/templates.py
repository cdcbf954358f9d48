"""Renders chat templates in a process beside the gateway.

The process is started when it is first needed, and again whenever it died.
"""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec
import structlog

from livescale.services.gateway.bodies import ChatMessage
from livescale.services.gateway.chat_template import USUAL, ChatTemplate, RenderingWay, TemplateRefusal, Wall
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.template_process import LENGTH_BYTES, MEMORY_BYTES, Rendered, Rendering

PROCESSOR_SECONDS = 2.0  # for one rendering
WAIT_SECONDS = 20.0  # long, for a busy machine; the process bounds its own use of the processor
LARGEST_PROMPT = 64 << 20
SMALL_CONVERSATION = 64 << 10  # bytes; a template that cannot render this much in its time never will
# What Python needs to find this package and the time zone; none of the gateway's secrets.
ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "TZ", "LANG", "LC_ALL")

log = structlog.get_logger()


class Templates:
    """Renders one conversation after the other. A template that fails on a small conversation is not tried again."""

    def __init__(self, wall: Wall, processor_seconds: float = PROCESSOR_SECONDS) -> None:
        self._wall = wall
        self._processor_seconds = processor_seconds
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def render(self, template: ChatTemplate, messages: list[ChatMessage], way: RenderingWay = USUAL) -> str:
        """The prompt of a conversation. Raises TemplateRefusal."""
        work = self._encoded(template.source, template.special_tokens, messages, way)
        async with self._turn:
            if template.condemned:
                raise self._overrun()
            answer = await self._ask(work)
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
            answer = await self._ask(work)
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
        seconds, mebibytes = self._processor_seconds, MEMORY_BYTES >> 20
        return TemplateRefusal(f"it took more than {seconds:g} s of the processor's time, or {mebibytes} MiB")

    async def _ask(self, work: bytes) -> bytes | None:
        """The process's answer; None where it died of the work, or took too long."""
        process = await self._running()
        answer = None
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    answer = await _exchange(process, work)
        finally:
            if answer is None:  # also when cancelled, as a late answer would be taken for the next one's
                await self._end()
        return answer

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            await self._end()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "livescale.services.gateway.template_process", str(self._processor_seconds)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,  # a traceback would show what is being rendered
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


async def _exchange(process: Process, work: bytes) -> bytes | None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(len(work).to_bytes(LENGTH_BYTES) + work)
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
    return await process.stdout.readexactly(length) if length <= LARGEST_PROMPT else None


def _prompt_of(answer: bytes) -> str:
    rendered = msgspec.msgpack.decode(answer, type=Rendered)
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
