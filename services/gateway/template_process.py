"""The process that renders chat templates.

A template is a program that came with the checkpoint, so the kernel bounds the time and memory of this process: a
template that loops for ever harms no other model.
"""

import sys

import msgspec

from livescale.services.gateway.chat_template import ChatTemplate, RenderingWay, TemplateRefusal
from livescale.services.gateway.conversation import ChatMessage
from livescale.shared.process.bounded_answers import answer_all

MEMORY_BYTES = 256 << 20  # in addition to what an idle process has
LONGEST_REASON = 500
KEPT_TEMPLATES = 16


class Rendering(msgspec.Struct, frozen=True):
    """A conversation to render. `wall` is in seconds since the epoch, for templates that ask for the date."""

    source: str
    special_tokens: dict[str, str]
    messages: list[ChatMessage]
    way: RenderingWay
    wall: float


class RenderedPrompt(msgspec.Struct, frozen=True):
    """The prompt, or the reason why there is none."""

    prompt: str | None = None
    refusal: str = ""


class Renderer:
    """Renders conversations; the last templates are kept compiled."""

    def __init__(self) -> None:
        self._wall = 0.0
        self._templates: dict[tuple[str, tuple[tuple[str, str], ...]], ChatTemplate] = {}

    def answer(self, data: bytes) -> bytes:
        """Render an encoded Rendering, and return the encoded RenderedPrompt."""
        work = msgspec.msgpack.decode(data, type=Rendering)
        self._wall = work.wall
        try:
            prompt = self._template(work).render(work.messages, work.way)
            return msgspec.msgpack.encode(RenderedPrompt(prompt))
        except (TemplateRefusal, MemoryError, UnicodeEncodeError) as error:
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, TemplateRefusal) else str(error)
            return msgspec.msgpack.encode(
                RenderedPrompt(refusal=reason[:LONGEST_REASON].encode(errors="replace").decode())
            )

    def _template(self, work: Rendering) -> ChatTemplate:
        key = (work.source, tuple(sorted(work.special_tokens.items())))
        if key not in self._templates:
            while len(self._templates) >= KEPT_TEMPLATES:
                del self._templates[next(iter(self._templates))]
            self._templates[key] = ChatTemplate(work.source, work.special_tokens, lambda: self._wall)
        return self._templates[key]


if __name__ == "__main__":
    answer_all(Renderer().answer, sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]), MEMORY_BYTES)
