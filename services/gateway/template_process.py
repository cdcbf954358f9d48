"""The process that renders chat templates.

A template is a program that came with the checkpoint, so the kernel bounds the time and memory of this process: a
template that loops for ever harms no other model.

Work comes on stdin and answers go to stdout, each after its length. This process ends when stdin does.
"""

import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from livescale.services.gateway.bodies import ChatMessage
from livescale.services.gateway.chat_template import ChatTemplate, RenderingWay, TemplateRefusal

MEMORY_BYTES = 256 << 20  # in addition to what an idle process has
LENGTH_BYTES = 4
LONGEST_REASON = 500
KEPT_TEMPLATES = 16


class Rendering(msgspec.Struct, frozen=True):
    """A conversation to render. `wall` is in seconds since the epoch, for templates that ask for the date."""

    source: str
    special_tokens: dict[str, str]
    messages: list[ChatMessage]
    way: RenderingWay
    wall: float


class Rendered(msgspec.Struct, frozen=True):
    """The prompt, or the reason why there is none."""

    prompt: str | None = None
    refusal: str = ""


class Renderer:
    """Renders conversations; the last templates are kept compiled."""

    def __init__(self) -> None:
        self._wall = 0.0
        self._templates: dict[tuple[str, tuple[tuple[str, str], ...]], ChatTemplate] = {}

    def answer(self, work: Rendering) -> bytes:
        """Render, and return the encoded Rendered."""
        self._wall = work.wall
        try:
            prompt = self._template(work).render(work.messages, work.way)
            return msgspec.msgpack.encode(Rendered(prompt))
        except (TemplateRefusal, MemoryError, UnicodeEncodeError) as error:
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, TemplateRefusal) else str(error)
            return msgspec.msgpack.encode(Rendered(refusal=reason[:LONGEST_REASON].encode(errors="replace").decode()))

    def _template(self, work: Rendering) -> ChatTemplate:
        key = (work.source, tuple(sorted(work.special_tokens.items())))
        if key not in self._templates:
            while len(self._templates) >= KEPT_TEMPLATES:
                del self._templates[next(iter(self._templates))]
            self._templates[key] = ChatTemplate(work.source, work.special_tokens, lambda: self._wall)
        return self._templates[key]


def main(work: BinaryIO, answers: BinaryIO, processor_seconds: float) -> None:
    """Answer until stdin ends. A rendering that takes more than `processor_seconds` ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the gateway, which ends this process
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    renderer = Renderer()
    while length := work.read(LENGTH_BYTES):
        data = work.read(int.from_bytes(length))
        signal.setitimer(
            signal.ITIMER_PROF, processor_seconds
        )  # its signal ends the process; a handler in Python would not run inside C code
        answer = renderer.answer(msgspec.msgpack.decode(data, type=Rendering))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(len(answer).to_bytes(LENGTH_BYTES) + answer)
        answers.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))
