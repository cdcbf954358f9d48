"""The report: one page, nothing fetched, everything escaped and named."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import click
import msgspec
import pytest

from load.outcome import Verdict
from load.pictures import draw_pictures
from load.report import render_report, save_page, write_report
from load.story import Story
from tests.load import happenings

VOID = {"meta", "br", "img", "link", "use", "path"}


class Balance(HTMLParser):
    """Collects the open elements, references to the outside and ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href") and not str(value).startswith("#"):
                self.outside.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def parse(page: str) -> Balance:
    balance = Balance()
    balance.feed(page)
    balance.close()
    return balance


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(happenings.outcome())


def test_the_page_is_well_formed_and_fetches_nothing(page: str) -> None:
    balance = parse(page)
    assert balance.open == []
    assert balance.outside == []
    assert len(balance.ids) == len(set(balance.ids))
    assert 'name="viewport"' in page
    assert "<script" not in page


def test_the_page_says_what_happened(page: str) -> None:
    assert "Every stream was complete and right: 150 streams, 1200 tokens, 0 ties" in page
    for text in ("worker-1", "12/12", "4.20 s", "4.80 s", "1 → 2 instances", "before", "burst", "after"):
        assert text in page


def test_text_is_escaped(page: str) -> None:
    assert "&lt;a &amp; b&gt;.csv" in page
    assert "<a & b>" not in page


def test_each_picture_is_xml_with_a_name_and_the_pages_text_colour() -> None:
    pictures = draw_pictures(happenings.outcome())
    assert [picture.title for picture in pictures] == [
        "Requests",
        "Instances",
        "Queue",
        "Time to first token",
        "Parameters arriving",
        "Time between tokens",
    ]
    for picture in pictures:
        root = ElementTree.fromstring(picture.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == picture.title
        assert root.get("width") is None
        assert "currentColor" in picture.svg
        assert "#010203" not in picture.svg


def test_the_same_outcome_gives_the_same_bytes(page: str) -> None:
    assert render_report(happenings.outcome()) == page


def test_faults_are_listed_and_long_lists_cut() -> None:
    verdict = Verdict(
        streams=30,
        faults=[f"request {n}: HTTP 429" for n in range(25)],
        tokens=10,
        wrong=["request 3: token 4 is 17, the reference has 9"],
        ties=0,
        ties_allowed=1,
        criterion="",
    )
    page = render_report(msgspec.structs.replace(happenings.outcome(), verdict=verdict))
    assert "of 30, 25 were not complete; of 10 tokens, 1 were wrong" in page
    assert "and 5 more" in page
    assert "request 3: token 4" in page


def test_a_load_without_events_or_answers_still_has_a_report(tmp_path: Path) -> None:
    bare = msgspec.structs.replace(happenings.outcome(), records=[], story=Story(happenings.MODEL))
    write_report(tmp_path / "report.html", bare)
    page = (tmp_path / "report.html").read_text()
    assert "no instance was added" in page
    assert parse(page).open == []
    assert re.search(r"None: the load did not ask", page)


def test_a_full_disk_is_named_with_the_file() -> None:
    with pytest.raises(click.ClickException, match=r"^/dev/full cannot be written: No space left on device$"):
        save_page(Path("/dev/full"), "page")
