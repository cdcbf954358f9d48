"""The picture of README.md: cut out of a report that `livescale demo` wrote, by the picture's title there.

.venv/bin/python docs/tools/picture.py livescale-demo.html
.venv/bin/python docs/tools/picture.py livescale-demo.html "Parameters arriving"
"""

import re
import sys
from pathlib import Path

TITLE = "Tokens while parameters arrive"
PICTURE = Path(__file__).parents[1] / "images" / "layers-arriving.svg"
WIDTH = 760
# The page around it gives no colours to a picture that is a file of its own.
STYLE = """<style>
svg { color: #1f2937; background: #ffffff; font-family: sans-serif; }
@media (prefers-color-scheme: dark) { svg { color: #e5e7eb; background: #111827; } }
</style>"""


def cut_out(report: str, title: str = TITLE) -> str:
    """The picture of this title as a file of its own, `WIDTH` pixels wide. Raises ValueError where there is none."""
    found = re.search(rf"<figure><h2>{re.escape(title)}</h2>(<svg.*?</svg>)", report, flags=re.DOTALL)
    if found is None:
        raise ValueError("the report has no picture of parameters that arrive; was an instance added?")
    head, rest = re.sub(r"\s*<metadata>.*?</metadata>", "", found[1], flags=re.DOTALL).split(">", 1)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    if size is None:
        raise ValueError("the picture in the report has no viewBox that begins at 0 0")
    height = round(WIDTH * float(size[2]) / float(size[1]))
    return f'{head} width="{WIDTH}" height="{height}">\n{STYLE}{rest}\n'


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(cut_out(Path(sys.argv[1]).read_text(encoding="utf-8"), *sys.argv[2:3]), encoding="utf-8")
