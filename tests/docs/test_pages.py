"""Pages that people read: short, in short sentences, with links and commands that lead somewhere."""

import re
from pathlib import Path

from click.testing import CliRunner

from livescale.services.cli.main import cli
from tests.docs.pages import AT_THE_ROOT, DOCS, ROOT, blocks, sentences, title, written

PAGES = written()
MOST_WORDS = 35
# People search the changelog, and it grows.
LARGEST = {"README.md": 6_000, "ARCHITECTURE.md": 6_000, "CHANGELOG.md": 30_000}


def test_a_page_is_short() -> None:
    for page in PAGES:
        assert len(page.read_bytes()) <= LARGEST.get(page.name if page.parent == ROOT else "", 10_000), title(page)


def test_sentences_are_short() -> None:
    for page in PAGES:
        long = [each for each in sentences(page.read_text()) if len(each.split()) > MOST_WORDS]
        assert not long, title(page)


def test_links_lead_to_files_that_are_there() -> None:
    for page in PAGES:
        targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
        missing = [target for target in targets if not (page.parent / target).exists()]
        assert not missing, title(page)


def test_paths_of_the_repository_that_are_named_are_there() -> None:
    for page in PAGES:
        named = re.findall(r"`((?:services|shared|load|tests|examples|docs)/[\w./-]*)`", page.read_text())
        missing = [path for path in named if not (ROOT / path).exists()]
        assert not missing, title(page)


def test_every_command_is_understood() -> None:
    for words in {tuple(words) for page in PAGES for block in blocks(page) for words in block.commands}:
        if "$service" in words:
            continue
        # Help is shown only after the options were read.
        result = CliRunner().invoke(cli, [*words[1:], *([] if "--version" in words else ["--help"])])
        assert result.exit_code == 0, f"{words}: {result.output}"


def test_every_target_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "\n".join(block.text for page in PAGES for block in blocks(page)) + (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.M))
    assert {"install", "demo", "docs"} <= targets
    assert not {target for target in targets if f"\n{target}:" not in makefile}


def test_the_readme_opens_with_the_two_commands() -> None:
    first = blocks(ROOT / "README.md")[0]
    assert first.text.split("\n")[:2] == ["make install", "make demo"]


def test_every_page_is_reached_from_the_first_one() -> None:
    reached, waiting = set[Path](), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
        waiting += [(page.parent / target).resolve() for target in targets]
    assert not set(DOCS.rglob("*.md")) - reached


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = set(re.findall(r"- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M))
    copies = {f"project/{name.lower()}.md" for name in AT_THE_ROOT}
    assert named == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | copies
