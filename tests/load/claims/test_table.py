"""The table as people and programs get it."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from livescale.load.claims import command
from livescale.load.claims.claim import Verdict, judge, one, several
from livescale.load.claims.page import render_claims
from livescale.load.claims.table import ClaimRow, render_markdown, row_of, tell_counts
from livescale.load.claims.workbench import Mode
from tests.load.claims.claims import made_up

OUTCOMES = [
    judge(made_up(), one(1.0, note="Just so."), {}),
    judge(made_up(), several(("here", 2.0)), {"made-up": "Nobody | knows."}),
]


def test_the_page_has_a_row_for_each_claim_and_tells_why() -> None:
    page = render_markdown(OUTCOMES, Mode.QUICK)
    assert page.startswith("<!-- Made by livescale claims --quick: do not edit. -->\n")
    assert "| Nobody 1 | It is 1. | 1 | 1 s | 0.9 to 1.1 s | holds |" in page
    assert "2 claims: 1 holds, 1 fails." in page
    assert "*Fails.* Nowhere. Here: 2, which is not within 0.9 to 1.1 s. Nobody | knows." in page
    assert "*Holds.* Nowhere. Just so." in page


def test_the_html_page_has_them_too() -> None:
    page = render_claims(OUTCOMES, Mode.FULL)
    assert "Three seeds" in page
    assert "Nobody | knows." in page
    assert tell_counts(OUTCOMES) in page


def test_json_has_the_numbers() -> None:
    row = msgspec.json.decode(msgspec.json.encode(row_of(OUTCOMES[1])), type=ClaimRow)
    assert (row.result, row.kind, row.ours) == (Verdict.FAILS, "band", [[("here", 2.0)]])


def invoke(*words: str) -> Result:
    return CliRunner().invoke(command.claims, words)


def test_the_command_checks_those_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = ("--markdown", "c.md", "--json", "c.json", "--report", "c.html")
    result = invoke("--quick", "--only", "blitz-fig15-request-3,lambda-ramp-1", *files)
    assert result.exit_code == 0, result.output
    assert "2 claims: 1 holds, 1 fails." in result.output
    rows = msgspec.json.decode(Path("c.json").read_bytes(), type=list[ClaimRow])
    assert [row.result for row in rows] == [Verdict.HOLDS, Verdict.FAILS]
    assert Path("c.md").read_text()
    assert Path("c.html").read_text()


def test_a_failure_without_a_reviewed_cause_ends_it_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "reviewed_causes", lambda mode: {})
    result = invoke("--quick", "--only", "lambda-ramp-1")
    assert result.exit_code == 1
    assert "no cause of it is reviewed: lambda-ramp-1" in result.output


def test_what_is_wrong_is_refused_before_anything_runs(tmp_path: Path) -> None:
    assert "there is no claim 'lambda'" in invoke("--only", "lambda").output
    assert "--markdown no/such/page.md" in invoke("--markdown", "no/such/page.md").output
    assert "blitz-ssd-8b" in invoke("--list").output
