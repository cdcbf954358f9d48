"""The picture of README.md is cut out of a report of the demo."""

from xml.dom import minidom

import pytest

from docs.tools.picture import PICTURE, cut_out

REPORT = (
    '<figure><h2>Queue</h2><svg viewBox="0 0 1 1"><text>queue</text></svg></figure>'
    "<figure><h2>Tokens while parameters arrive</h2>"
    '<svg viewBox="0 0 2 1"><metadata>when</metadata><text>blocks</text></svg>'
)


def test_the_picture_is_a_file_of_its_own() -> None:
    picture = minidom.parseString(cut_out(REPORT)).documentElement
    assert picture is not None
    assert picture.getAttribute("viewBox") == "0 0 2 1"
    assert [node.tagName for node in picture.childNodes if isinstance(node, minidom.Element)] == ["style", "text"]


def test_the_picture_is_as_wide_as_the_page_and_keeps_its_shape() -> None:
    head = cut_out(REPORT).split("\n")[0]
    assert head.endswith('width="760" height="380">')


def test_another_picture_of_the_report_is_taken_by_its_title() -> None:
    assert "queue" in cut_out(REPORT, "Queue")


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ("", "was an instance added"),
        (REPORT.replace("while parameters", "before parameters"), "was an instance added"),
        (REPORT.replace('"0 0 2 1"', '"1 0 2 1"'), "no viewBox"),
    ],
)
def test_a_report_without_the_picture_is_refused(report: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        cut_out(report)


def test_the_picture_that_is_committed_can_be_read() -> None:
    picture = minidom.parseString(PICTURE.read_text()).documentElement
    assert picture is not None
    assert picture.tagName == "svg"
