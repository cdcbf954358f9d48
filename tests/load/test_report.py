"""The report: one page, nothing fetched, everything escaped and named."""

import re
from html.parser import HTMLParser
from pathlib import Path

import click
import msgspec
import pytest
from msgspec.structs import replace

from livescale.load.incidents import RunIncident
from livescale.load.outcome import StreamsVerdict
from livescale.load.pictures import draw_pictures
from livescale.load.report import render_report, save_page, write_report
from livescale.load.story import Story
from tests.load import sample_run
from tests.load.sample_run import START

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
    return render_report(sample_run.outcome())


def test_the_page_is_well_formed_and_fetches_nothing(page: str) -> None:
    balance = parse(page)
    assert balance.open == []
    assert balance.outside == []
    assert len(balance.ids) == len(set(balance.ids))
    assert 'name="viewport"' in page
    assert "<script" not in page


def test_the_page_says_what_happened(page: str) -> None:
    assert "Every stream was complete and right: 150 streams, 1200 tokens, 0 ties" in page
    for text in ("worker-1", "instance-of-worker-1", "4.20 s", "4.80 s", "1 → 2 instances", "before", "burst", "after"):
        assert text in page


def test_the_page_has_both_first_tokens_of_a_live_instance_and_who_took_requests_over() -> None:
    page = render_report(sample_run.outcome(sample_run.live_scale()))
    assert "worker-1, live from its first layer on: its first token, shared with worker-0, " in page
    assert "After its full load, as others do, it would not have begun before 4.20 s." in page
    for text in ("worker-0: 2", "1.00 s", "1.10 s", "4.20 s", "4.80 s"):
        assert f"<td>{text}</td>" in page
    assert parse(page).open == []


def test_a_new_instance_that_was_not_live_has_one_first_token(page: str) -> None:
    assert "worker-1, not live: whole 4.20 s after the decision, its first token after 4.80 s." in page


def test_text_is_escaped(page: str) -> None:
    assert "&lt;a &amp; b&gt;.csv" in page
    assert "<a & b>" not in page


def test_the_same_outcome_gives_the_same_bytes(page: str) -> None:
    assert render_report(sample_run.outcome()) == page


def test_faults_are_listed_and_long_lists_cut() -> None:
    verdict = StreamsVerdict(
        streams=30,
        faults=[f"request {n}: HTTP 429" for n in range(25)],
        tokens=10,
        wrong=["request 3: token 4 is 17, the reference has 9"],
        ties=0,
        ties_allowed=1,
        criterion="",
    )
    page = render_report(msgspec.structs.replace(sample_run.outcome(), verdict=verdict))
    assert "of 30, 25 were not complete; of 10 tokens, 1 were wrong" in page
    assert "and 5 more" in page
    assert "request 3: token 4" in page


def test_a_load_without_events_or_answers_still_has_a_report(tmp_path: Path) -> None:
    bare = msgspec.structs.replace(sample_run.outcome(), records=[], story=Story(sample_run.MODEL))
    write_report(tmp_path / "report.html", bare)
    page = (tmp_path / "report.html").read_text()
    assert "no instance was added" in page
    assert parse(page).open == []
    assert re.search(r"None: the load did not ask", page)


def test_a_full_disk_is_named_with_the_file() -> None:
    with pytest.raises(click.ClickException, match=r"^/dev/full cannot be written: No space left on device$"):
        save_page(Path("/dev/full"), "page")


def test_the_report_says_that_live_was_slower() -> None:
    slow = [event for event in sample_run.live_scale() if event[0] != 21.5]  # nothing is handed over
    page = render_report(replace(sample_run.outcome(slow), prefill_seconds=0.1))
    assert "worker-1: live scaling was slower than waiting for all parameters: its first token came 4.80 s" in page


def test_incidents_are_on_the_time_axis_of_the_report_and_in_a_list() -> None:
    befell = [
        RunIncident(START + 30, "stall", "the machine stood still for 2.1 s", 2.1),
        RunIncident(START, "death", "<w>"),
    ]
    quiet, outcome = sample_run.outcome(), replace(sample_run.outcome(), incidents=befell)
    assert "<dt>+30.0 s</dt><dd>the machine stood still for 2.1 s</dd>" in render_report(outcome)
    assert "&lt;w&gt;" in render_report(outcome)
    changed = [a.title for a, b in zip(draw_pictures(quiet), draw_pictures(outcome), strict=True) if a.svg != b.svg]
    assert changed == ["Requests", "Instances", "Queue", "Time to first token", "Time between tokens"]
