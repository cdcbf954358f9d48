"""Checks a claim as far as it can be, and says which failures nobody has looked at: causes are reviewed by people."""

from collections.abc import Mapping, Sequence
from importlib import resources

import msgspec
from msgspec import yaml

from livescale.load.claims.claim import Claim, Judgement, Verdict, judge
from livescale.load.claims.workbench import Mode, Workbench

FILE = "reviewed.yaml"


class ReviewedCauses(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    """Why claims fail, by their ids: in every mode, and only where `--full` would not fail."""

    always: dict[str, str]
    without_full: dict[str, str]


def reviewed_causes(mode: Mode) -> dict[str, str]:
    """Why claims fail in this mode, by their ids: causes that somebody has looked into and written down."""
    text = (resources.files("livescale.load.claims") / FILE).read_bytes()
    found = yaml.decode(text, type=ReviewedCauses)
    return found.always if mode is Mode.FULL else found.always | found.without_full


TOO_LONG = "It is too long for --quick."


def check(claim: Claim, bench: Workbench, causes: Mapping[str, str]) -> Judgement:
    """Measure a claim and judge it, where it can be measured."""
    if claim.measure is None:
        return Judgement(claim=claim, verdict=Verdict.NOT_EXPRESSIBLE, reason=claim.why_not)
    if claim.effort == "long" and bench.mode is Mode.QUICK:
        return Judgement(claim=claim, verdict=Verdict.NOT_RUN, reason=TOO_LONG)
    lacking = bench.lacks(claim.traces)
    if lacking:
        return Judgement(claim=claim, verdict=Verdict.NOT_RUN, reason=f"{lacking}.")
    return judge(claim, claim.measure(bench), causes)


def unreviewed(outcomes: Sequence[Judgement]) -> list[str]:
    """The claims that fail without a reviewed cause."""
    return [one.claim.id for one in outcomes if one.verdict is Verdict.FAILS and not one.reviewed]


def outdated(outcomes: Sequence[Judgement], causes: Mapping[str, str]) -> list[str]:
    """The reviewed causes of claims that do not fail, or that there are not."""
    found = {one.claim.id: one.verdict for one in outcomes}
    return [id for id in causes if found.get(id) not in (Verdict.FAILS, Verdict.NOT_RUN)]
