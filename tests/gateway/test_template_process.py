"""The process that renders chat templates, without a process."""

import msgspec

from livescale.services.gateway import template_process
from livescale.services.gateway.chat_template import USUAL
from tests.gateway.test_templates import CHAT


def test_only_so_many_templates_are_kept() -> None:
    renderer = template_process.Renderer()
    for number in range(2 * template_process.KEPT_TEMPLATES):
        renderer.answer(msgspec.msgpack.encode(template_process.Rendering(f"{number}", {}, CHAT, USUAL, 0.0)))
    assert len(renderer._templates) == template_process.KEPT_TEMPLATES
