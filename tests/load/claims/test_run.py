"""Which claims are measured, and which failures end the command with 1."""

from pathlib import Path

from msgspec import json

from livescale.load.claims.claim import Claim, Verdict, cannot, one
from livescale.load.claims.every import CLAIMS
from livescale.load.claims.run import check, outdated, reviewed_causes, unreviewed
from livescale.load.claims.workbench import TRACES, Mode
from tests.load.claims.claims import made_up, workbench


def long(traces: tuple[str, ...] = ()) -> Claim:
    claim = made_up()
    return Claim(
        id="long", source="a", says="b", bound=claim.bound, measure=claim.measure, effort="long", traces=traces
    )


def test_what_is_not_measured_says_why(tmp_path: Path) -> None:
    bench = workbench(tmp_path)
    found = check(cannot("a", "b", "c", "No text."), bench, {})
    assert (found.verdict, found.reason) == (Verdict.NOT_EXPRESSIBLE, "No text.")
    assert check(long(), bench, {}).verdict is Verdict.NOT_RUN
    assert check(made_up(), bench, {}).verdict is Verdict.HOLDS


def test_a_trace_that_is_missing_is_named(tmp_path: Path) -> None:
    assert check(long(), workbench(tmp_path, Mode.DEFAULT), {}).verdict is Verdict.HOLDS
    nowhere = check(long(("AzureCode",)), workbench(tmp_path, Mode.DEFAULT), {})
    assert (nowhere.verdict, nowhere.reason) == (Verdict.NOT_RUN, "No --traces with azure_code_2023.csv.")
    empty = check(long(("AzureCode",)), workbench(tmp_path, Mode.DEFAULT, tmp_path), {})
    assert empty.reason == f"There is no azure_code_2023.csv in {tmp_path}."
    (tmp_path / TRACES["AzureCode"][0]).write_bytes(json.encode([]))
    assert check(long(("AzureCode",)), workbench(tmp_path, Mode.FULL, tmp_path), {}).verdict is Verdict.HOLDS


def test_failures_that_nobody_looked_at_and_causes_that_are_out_of_date(tmp_path: Path) -> None:
    bench = workbench(tmp_path)
    fails, holds = made_up(measured=one(2.0)), check(made_up(), bench, {})
    assert unreviewed([check(fails, bench, {}), holds]) == ["made-up"]
    assert unreviewed([check(fails, bench, {"made-up": "known"})]) == []
    assert outdated([check(fails, bench, {})], {"made-up": "known"}) == []
    assert outdated([holds], {"made-up": "known", "gone": "known"}) == ["made-up", "gone"]
    assert outdated([check(long(), bench, {})], {"long": "known"}) == []


def test_every_cause_is_of_a_claim_that_is_measured_and_is_a_sentence() -> None:
    measured = {claim.id for claim in CLAIMS if claim.measure}
    for id, cause in reviewed_causes(Mode.DEFAULT).items():
        assert id in measured, id
        assert cause.strip().endswith("."), id


def test_full_runs_have_the_causes_of_claims_that_fail_in_them_alone() -> None:
    full, short = reviewed_causes(Mode.FULL), reviewed_causes(Mode.DEFAULT)
    assert short.items() > full.items()
    assert reviewed_causes(Mode.QUICK) == short
