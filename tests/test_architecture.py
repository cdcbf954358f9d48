"""ARCHITECTURE.md has a line for every file, and none for files that are not there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAME_IN_EVERY_SERVICE = {"__init__.py", "main.py", "settings.py"}


def named() -> set[str]:
    files, folder = set(), ""
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        if heading := re.fullmatch(r"\*\*(.+)/\*\*", line):
            folder = heading[1]
        elif entry := re.match(r"- `([a-z_]+\.py)` \S", line):
            files.add(f"{folder}/{entry[1]}")
    return files


def present() -> set[str]:
    files = [file for top in ("shared", "services", "load") for file in (ROOT / top).rglob("*.py")]
    return {str(file.relative_to(ROOT)) for file in files if file.name not in SAME_IN_EVERY_SERVICE}


def test_every_file_has_its_line() -> None:
    assert sorted(present() - named()) == []


def test_no_line_is_of_a_file_that_is_gone() -> None:
    assert [file for file in sorted(named()) if not (ROOT / file).is_file()] == []
