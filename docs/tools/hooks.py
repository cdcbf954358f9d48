"""Pages of the repository's root as pages of the site: they lie where readers of the repository look for them."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
NAMES = ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in NAMES:
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        files.append(File.generated(config, f"project/{name.lower()}.md", content=from_root(text)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links to pages at the root of the repository into links to their copies on the site."""
    up = "../" * page.file.src_uri.count("/")

    def turn(found: re.Match[str]) -> str:
        return f"]({up}project/{found[1].lower()}.md"

    return re.sub(rf"\]\((?:\.\./)+({'|'.join(NAMES)})\.md", turn, markdown)


def from_root(text: str) -> str:
    """Links of a page that has moved from the root to project/."""
    text = re.sub(r"\]\(docs/", "](../", text)
    return re.sub(rf"\]\(({'|'.join(NAMES)})\.md", lambda found: f"]({found[1].lower()}.md", text)
