"""A claim of a paper: where it stands, what has to hold, and how it is measured here. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from livescale.load.pictures import SvgPicture

if TYPE_CHECKING:
    from livescale.load.claims.workbench import Workbench

Effort = Literal["pure", "short", "long"]


class Verdict(StrEnum):
    """What came of a claim. A `calibrated` one has a constant that was fitted to its number, so it proves nothing."""

    HOLDS = "holds"
    FAILS = "fails"
    CALIBRATED = "calibrated"
    STAND_IN = "stand-in trace"
    NOT_EXPRESSIBLE = "not expressible"
    NOT_RUN = "not run"


class Figure(NamedTuple):
    """A measured number with the name of what was measured, such as "8 GPUs"."""

    name: str
    value: float

    def __str__(self) -> str:
        text = f"{self.value:.4g}"
        return f"{self.name}: {text}" if self.name else text


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured, in rows: one for each setting, such as each window of a trace. `note` is for readers."""

    rows: tuple[tuple[Figure, ...], ...]
    note: str = ""
    picture: SvgPicture | None = None

    def __post_init__(self) -> None:
        if not all(self.rows) or not self.rows:
            raise ValueError("nothing was measured, and every claim would hold")

    def __str__(self) -> str:
        return "; ".join(", ".join(map(str, row)) for row in self.rows)


def one(value: float, note: str = "") -> Measured:
    """Make the result of a claim about a single number."""
    return Measured(rows=((Figure("", value),),), note=note)


def several(*figures: tuple[str, float], note: str = "", picture: SvgPicture | None = None) -> Measured:
    """Numbers of one setting, with what each is of."""
    return Measured(rows=(tuple(Figure(*figure) for figure in figures),), note=note, picture=picture)


@dataclass(frozen=True)
class Exact:
    """Each number is the paper's, up to `within`."""

    paper: tuple[float, ...]
    unit: str = ""
    within: float = 0.0

    kind = "exact"

    @property
    def says(self) -> str:
        return f"{', '.join(f'{each:g}' for each in self.paper)} {self.unit}".strip()

    @property
    def tolerance(self) -> str:
        return f"± {self.within:g}" if self.within else "to the digit"

    def misses(self, measured: Measured) -> Iterator[str]:
        """Yield each number that is further than `within` from the paper's."""
        for row in measured.rows:
            for figure, paper in zip(row, self.paper, strict=True):
                if not abs(figure.value - paper) <= self.within + 1e-9:  # nor is NaN the paper's
                    yield f"{figure}, and not {paper:g}"


@dataclass(frozen=True)
class Band:
    """Every number is between `low` and `high`. `says` is what the paper has."""

    says: str
    low: float
    high: float
    unit: str = ""

    kind = "band"

    @property
    def tolerance(self) -> str:
        low, high = self.low > float("-inf"), self.high < float("inf")
        bounds = f"{self.low:g} to {self.high:g}" if low and high else f"≥ {self.low:g}" if low else f"≤ {self.high:g}"
        return f"{bounds} {self.unit}".strip()

    def misses(self, measured: Measured) -> Iterator[str]:
        """Yield each number that is below `low` or above `high`."""
        for row in measured.rows:
            for figure in row:
                if not self.low <= figure.value <= self.high:
                    yield f"{figure}, which is not within {self.tolerance}"


@dataclass(frozen=True)
class Order:
    """In each row every number is below the next; it may be up to `slack` times the next. `says` is the paper's."""

    says: str
    unit: str = ""
    slack: float = 1.0

    kind = "order"

    @property
    def tolerance(self) -> str:
        return "each below the next" if self.slack == 1 else f"each at most {self.slack:g} times the next"

    def misses(self, measured: Measured) -> Iterator[str]:
        """Yield each number that is not below the one after it, within `slack`."""
        for row in measured.rows:
            for less, more in pairwise(row):
                kept = less.value < more.value if self.slack == 1 else less.value <= self.slack * more.value
                if not kept:
                    yield f"{less} is not {'below' if self.slack == 1 else f'at most {self.slack:g} times'} {more}"


def around(paper: float, unit: str, share: float) -> Band:
    """A band of this share around the paper's number."""
    return Band(f"{paper:g} {unit}".strip(), paper * (1 - share), paper * (1 + share), unit)


Bound = Exact | Band | Order


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says, and how it is checked.

    `calibrated` names the constant that was fitted to the number, and `stand_in` what is replayed in place of the
    paper's trace. Without `measure` it cannot be checked, and `why_not` says why. `traces` are those that it needs.
    """

    id: str
    source: str
    says: str
    setting: str = ""
    bound: Bound | None = None
    measure: "Callable[[Workbench], Measured] | None" = None
    effort: Effort = "pure"
    calibrated: str = ""
    stand_in: str = ""
    why_not: str = ""
    traces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.measure is None) != bool(self.why_not) or (self.measure is None) != (self.bound is None):
            raise ValueError(f"{self.id}: give a measure with its bound, or why there is none")


def cannot(id: str, source: str, says: str, why: str) -> Claim:
    """Make a claim that cannot be checked here, and say why."""
    return Claim(id=id, source=source, says=says, why_not=why)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim and what came of it. `reason`: why it does not hold."""

    claim: Claim
    verdict: Verdict
    measured: Measured | None = None
    reason: str = ""
    reviewed: bool = False


def judge(claim: Claim, measured: Measured, causes: Mapping[str, str]) -> Judgement:
    """Hold what was measured against the paper. `causes` are the reviewed ones, by claim."""
    assert claim.bound is not None
    misses = list(claim.bound.misses(measured))
    if misses:
        cause = causes.get(claim.id, "")
        found = f"{misses[0][0].upper()}{misses[0][1:]}."
        reason = f"{found} {cause or 'No cause is on the reviewed list.'}"
        return Judgement(claim=claim, verdict=Verdict.FAILS, measured=measured, reason=reason, reviewed=bool(cause))
    if claim.calibrated:
        return Judgement(claim=claim, verdict=Verdict.CALIBRATED, measured=measured, reason=claim.calibrated)
    if claim.stand_in:
        return Judgement(claim=claim, verdict=Verdict.STAND_IN, measured=measured, reason=claim.stand_in)
    return Judgement(claim=claim, verdict=Verdict.HOLDS, measured=measured)
