"""The reviewed causes of claims that fail: for people, each one a sentence."""

from livescale.load.claims.causes import reviewed_causes
from livescale.load.claims.every import CLAIMS


def test_every_cause_is_of_a_claim_that_is_measured_and_is_a_sentence() -> None:
    measured = {claim.id for claim in CLAIMS if claim.measure}
    for id, cause in reviewed_causes().items():
        assert id in measured, id
        assert cause.strip().endswith("."), id
