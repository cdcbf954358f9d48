"""A matplotlib figure as an SVG file of its own, that is readable on light and on dark backgrounds."""

import io
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

from livescale.load.pictures import INK, STYLE

# A viewer that knows what its user prefers says so; everyone else gets black on white.
COLOURS = """<style>
svg { color: #1f2937; background: #ffffff; max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { svg { color: #e5e7eb; background: #111827; } }
</style>"""


def render_svg(figure: Figure, title: str) -> str:
    """The file's text; `title` is read aloud, and makes two files of the same figure equal."""
    written = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": title}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    head, _, body = text[text.index("<svg") :].partition(">")
    head = head.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return f"{head}>\n{COLOURS}{body}".replace(INK, "currentColor")
