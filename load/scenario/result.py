"""What came of a scenario: figures of each model's requests, scales, faults, the digest of the run, and what `livescale
status` and `livescale why` would have printed at a moment of it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import click
import msgspec

from livescale.load.bench.systems.play import AnsweredRequest, SystemRun
from livescale.load.bench.systems.rows import tell_ms
from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.faults import ClusterFault, FaultKind
from livescale.load.stats import new_table, percentile
from livescale.services.cli.status import ask_status, print_status
from livescale.services.cli.status_view import Status
from livescale.services.cli.tables import open_console
from livescale.services.cli.why import MOST_DECISIONS, Why, ask_why, explain
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.scaling import ScaleRecord

ALL = "all models"
SHOWN_REASONS = 5
USES = ("first_layer", "first_token")  # phases that requests bring about, which may be later than the scale's end


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a time in seconds; None of nothing."""

    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(*(percentile(values, q) for q in (50, 90, 99)))

    def __str__(self) -> str:
        return " / ".join("-" if each is None else tell_ms(each) for each in (self.p50, self.p90, self.p99))


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The requests for one model that count: `failed` were not answered as they should be, `unfinished` had not ended.

    `tbt` is of all gaps between tokens but the first of each request, which is `second_gap`.
    """

    model: str
    requests: int
    failed: int
    unfinished: int
    ttft: Spread
    tbt: Spread
    second_gap: Spread

    @classmethod
    def of(cls, model: str, answered: Sequence[AnsweredRequest], failed: int, unfinished: int) -> "ModelFigures":
        return cls(
            model=model,
            requests=len(answered) + failed + unfinished,
            failed=failed,
            unfinished=unfinished,
            ttft=Spread.of([one.ttft for one in answered]),
            tbt=Spread.of([gap for one in answered for gap in one.gaps[1:]]),
            second_gap=Spread.of([one.gaps[0] for one in answered if one.gaps]),
        )


class ScaleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One scale: when it was decided, what it was to change, how it ended, and how long it took. `seconds` is None for
    one that did not end. `blocks`: seconds from the decision until each block was ready at a target, in order."""

    id: str
    model: str
    at: float
    action: str
    current: int
    target: int
    rule: str
    state: str
    seconds: float | None
    blocks: list[float] = []

    @classmethod
    def of(cls, record: ScaleRecord, begun: float) -> "ScaleFigures":
        decision, ended = record.decision, record.state in ("done", "failed")
        phases = [phase for phase in record.phases if phase.name not in USES]
        return cls(
            id=record.id,
            model=decision.model,
            at=decision.at - begun,
            action=decision.action,
            current=decision.current,
            target=decision.target,
            rule=decision.rule,
            state=record.state,
            seconds=max(phase.at for phase in phases) - decision.at if ended and phases else None,
            blocks=sorted(at - decision.at for each in record.arrived.values() for at in each if at is not None),
        )

    def row(self) -> list[str]:
        took = "" if self.seconds is None else tell_ms(self.seconds)
        change = f"{self.action} {self.current} -> {self.target}"
        return [f"{self.at:.3f} s", self.model, change, self.rule, self.state, took]


class FaultFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that happened, and the processes that it befell. `seconds` is None for one that is for good."""

    at: float
    what: FaultKind
    befell: list[str]
    other: str
    seconds: float | None
    amount: float

    @classmethod
    def of(cls, fault: ClusterFault, befell: list[str]) -> "FaultFigures":
        return cls(
            at=fault.at,
            what=fault.what,
            befell=befell,
            other=fault.other,
            seconds=fault.seconds if isfinite(fault.seconds) else None,
            amount=fault.amount,
        )

    def row(self) -> list[str]:
        whom = ", ".join(self.befell) + (f" from {self.other}" if self.other else "")
        lasted = "good" if self.seconds is None else f"{self.seconds:g} s"
        return [f"{self.at:.3f} s", self.what, whom, lasted, f"{self.amount:g}" if self.amount else ""]


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written to the file of results. Times count from when the first request could come.

    `crashes`: processes that ended by themselves, with when and why. `digest` is of all `events` on the bus.
    """

    scenario: str
    seed: int
    topology: str
    workers: int
    engine_profile: str
    ended_at: float
    digest: str
    events: int
    models: list[ModelFigures]
    scales: list[ScaleFigures]
    faults: list[FaultFigures]
    crashes: list[str]
    used_seconds: float
    cpu_seconds: float
    run: SystemRun

    def facts(self) -> list[tuple[str, str]]:
        """Name and text of each line that the table shows below the models."""
        return [
            *([("failed", tell_failures(self.run.faults))] if self.run.faults else []),
            ("GPU seconds", f"{self.used_seconds:.0f}"),
            ("scales", tell_counts([f"{one.action} {one.state}" for one in self.scales])),
            ("faults", tell_counts([one.what for one in self.faults])),
            ("crashes", "; ".join(self.crashes) or "none"),
            ("simulated", f"{self.ended_at:.1f} s in {self.cpu_seconds:.1f} s of CPU"),
            ("digest", f"{self.digest} of {self.events} events, seed {self.seed}"),
        ]

    def rows(self) -> list[list[str]]:
        return [
            [one.model, *map(str, (one.requests, one.failed, one.unfinished, one.ttft, one.tbt, one.second_gap))]
            for one in self.models
        ]


HEADINGS = ("", "requests", "failed", "unfinished", "TTFT p50 / p90 / p99", "TBT p50 / p90 / p99", "second token")
SCALE_HEADINGS = ("at", "model", "change", "rule", "state", "took")
FAULT_HEADINGS = ("at", "what", "whom", "for", "amount")


def tell_counts(names: Sequence[str]) -> str:
    """Say how often each name is there, such as "2 up done, 1 down done"."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def tell_failures(faults: Sequence[str]) -> str:
    """Why requests failed, the most frequent reason first; `faults` begin with a request's id each."""
    reasons = Counter(fault.partition(": ")[2] for fault in faults)
    return "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(SHOWN_REASONS))


SHOWN = 1_000  # decisions


class Question(NamedTuple):
    """Asked at second `at`: of everything, or why `model` was scaled."""

    at: float
    model: str = ""


class AnsweredQuestion(NamedTuple):
    """What came; a text if nobody could answer, such as a registry that was dead then."""

    question: Question
    found: Status | Why | str


async def put(made: VirtualCluster, question: Question, begun: float) -> AnsweredQuestion:
    """Ask when it is time. The run stays what it would be without the question."""
    await asyncio.sleep(begun + question.at - made.now)
    seconds = made.settings.message_seconds
    bus = made.broker.connect(delays=lambda subject: (seconds,))
    try:
        found: Status | Why = await (
            ask_why(bus, question.model, SHOWN, MOST_DECISIONS) if question.model else ask_status(bus)
        )
    except BusError as error:
        return AnsweredQuestion(question, str(error))
    finally:
        await bus.close()
    return AnsweredQuestion(question, found)


def show(answer: AnsweredQuestion) -> None:
    """Print an answer as the command of a real system would."""
    question, found = answer
    click.echo(f"\nlivescale {f'why {question.model}' if question.model else 'status'} at {question.at:g} s:")
    if isinstance(found, str):
        click.echo(f"nobody answered: {found}")
    elif isinstance(found, Status):
        print_status(found, verbose=False)
    else:
        for line in explain(question.model, found.decisions, found.scales, found.error, found.incidents, limit=SHOWN):
            click.echo(line)


def print_result(result: SimulationResult) -> None:
    console = open_console()
    table = new_table(f"{result.scenario}: {result.workers} workers of {result.topology}, {result.engine_profile}")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in result.rows():
        table.add_row(*row)
    console.print(table)
    for name, fact in result.facts():
        console.print(f"{name:<12} {fact}", highlight=False, soft_wrap=True, markup=False)
