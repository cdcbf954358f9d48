"""The written pages, and the blocks of commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
AT_THE_ROOT = ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")
MADE = "<!-- Made by "
BLOCK = re.compile(r"^(?:<!-- parsed only: (?P<why>[^>]+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """What is between two fences. `why` says why it is parsed only; None: it runs in a test."""

    page: str
    kind: str
    text: str
    why: str | None

    @property
    def commands(self) -> list[list[str]]:
        """The livescale commands in the block, as words."""
        joined = self.text.replace("\\\n", " ")
        lines = re.findall(r"^(?:[A-Z_]+=\S+ )*(?:for .*; do )?(livescale .*)$", joined, flags=re.M)
        return [shlex.split(re.split(r" & ?|;", line)[0], comments=True) for line in lines]


def written() -> list[Path]:
    """Every page that is not made from the code."""
    pages = [ROOT / f"{name}.md" for name in AT_THE_ROOT]
    return [*pages, *(page for page in sorted(DOCS.rglob("*.md")) if MADE not in page.read_text())]


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    return [Block(title(page), *found.group("kind", "text", "why")) for found in BLOCK.finditer(page.read_text())]


def sentences(text: str) -> Iterator[str]:
    """The sentences of prose, lists and cells of tables; text in fences or comments is left out."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^#.*?$|^\|[ |:-]+\|$", "", text, flags=re.M | re.S)
    text = re.sub(r"^(#.*|---)$", "", text, flags=re.M)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for unit in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |\n?\|", text):
        yield from re.split(r"(?<=[.!?])(?:\*\*)?\s+(?=[A-Z`*\"(])", " ".join(unit.split()))
