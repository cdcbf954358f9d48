"""The claims themselves: the cheapest are checked, and every one is on the page of the documentation."""

from pathlib import Path

import pytest

from livescale.load.claims.claim import Claim, Verdict
from livescale.load.claims.every import CLAIMS
from livescale.load.claims.run import check, reviewed_causes
from livescale.load.claims.workbench import TRACES, Mode
from tests.docs.pages import DOCS
from tests.load.claims.claims import workbench

TIMED = {"blitz-ilp"}  # seconds of this machine are no part of a test
PURE = [claim for claim in CLAIMS if claim.measure and claim.effort == "pure" and claim.id not in TIMED]
PAPERS = ("BlitzScale", "LambdaScale", "DeepServe", "Operator-level autoscaling")
CAUSES = reviewed_causes(Mode.DEFAULT)


@pytest.mark.parametrize("claim", PURE, ids=lambda claim: claim.id)
def test_what_takes_no_simulation_comes_out_as_it_was_reviewed(claim: Claim, tmp_path: Path) -> None:
    outcome = check(claim, workbench(tmp_path), CAUSES)
    assert (outcome.verdict is Verdict.FAILS) == (claim.id in CAUSES), outcome.reason
    if outcome.verdict is not Verdict.FAILS:
        assert outcome.verdict is (Verdict.CALIBRATED if claim.calibrated else Verdict.HOLDS)


def test_claims_have_names_of_their_own_and_traces_that_there_are() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    assert {name for claim in CLAIMS for name in claim.traces} <= TRACES.keys()
    assert set(CAUSES) <= {claim.id for claim in CLAIMS if claim.measure}
    assert all(claim.source.startswith(PAPERS) for claim in CLAIMS)


def test_every_claim_is_on_the_page() -> None:
    page = (DOCS / "explanation" / "claims.md").read_text()
    assert [claim.id for claim in CLAIMS if f"| {claim.source} | {claim.says} |" not in page] == []
