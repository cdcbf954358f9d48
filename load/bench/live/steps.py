"""Reads from workers' logs which steps they ran when, while an instance was added. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from livescale.load.records import RequestRecord
from livescale.services.supervisor.processes import Echo
from livescale.shared.messages.transfers import LiveMode

STEP, LAYER, TAKEN = " step_ran ", " layer_ran ", " request_taken "


@dataclass(frozen=True)
class Execution:
    """A step, or a layer at an instance that still loads. `layers`: layers of rows, added up; `before`: those of the
    same rows that had been run before. Seconds since the epoch."""

    worker: str
    start: float
    end: float
    rows: int
    layers: int
    before: int
    live: bool

    def layers_in(self, start: float, end: float) -> float:
        """Its share of what it ran between these times."""
        overlap = min(self.end, end) - max(self.start, start)
        return self.layers * overlap / (self.end - self.start) if overlap > 0 else 0.0


@dataclass(frozen=True)
class LiveRun:
    """A scale from one instance to two with requests that waited for it. Seconds since the epoch.

    `ready`: when each of the model's blocks was at the `target`; the last of them makes it whole.
    """

    mode: LiveMode
    source: str
    target: str
    decided: float
    ready: Sequence[float]
    records: Sequence[RequestRecord]
    executions: Sequence[Execution]

    @property
    def whole(self) -> float:
        return max(self.ready)

    @property
    def load_seconds(self) -> float:
        return self.whole - self.decided

    @property
    def ended(self) -> float:
        """When the last request had its first token."""
        return max(self.firsts)

    @property
    def firsts(self) -> list[float]:
        """When each request had its first token, in seconds since the epoch."""
        return [record.token_at[0] for record in self.records]

    @property
    def mean_ttft(self) -> float:
        return fmean(record.ttft or 0.0 for record in self.records)

    @property
    def mean_gap(self) -> float:
        """The mean time between two tokens of a stream, in seconds."""
        return fmean(gap for record in self.records for gap in record.gaps)

    @property
    def finished_loading(self) -> int:
        """Requests that had their first token before the new instance was whole."""
        return sum(at <= self.whole for at in self.firsts)

    @property
    def first_layer(self) -> float | None:
        """When the new instance began to run its first layer; None where it ran none before it was whole."""
        return min((one.start for one in self.executions if one.live), default=None)

    @property
    def first_shared(self) -> float | None:
        """When the first request had its token of which the new instance had run layers."""
        steps = [one.end for one in self.executions if one.before and one.worker == self.source]
        return min((at for at in self.firsts if steps and at >= min(steps)), default=None)

    @property
    def slowest(self) -> Execution:
        """The step that took longest for its layers: it tells where the time of a slow run went."""
        return max(self.executions, key=lambda one: (one.end - one.start) / max(1, one.layers))

    def layers_in(self, start: float, end: float) -> float:
        """How many layers both instances ran between two times, in parts where a step was cut."""
        return sum(one.layers_in(start, end) for one in self.executions)


class StepLog:
    """`echo` passes lines on to `log`, and keeps what workers say of their steps and layers."""

    def __init__(self, log: Echo, model_layers: int) -> None:
        self.model_layers = model_layers
        self.executions: list[Execution] = []
        self.hand_offs: list[float] = []  # seconds
        self.changed: Callable[[], None] = lambda: None
        self._log = log

    def echo(self, name: str, line: str) -> None:
        if STEP in line or LAYER in line:
            self.executions.append(read_execution(name, line, self.model_layers))
            self.changed()
        elif TAKEN in line:
            fields = read_fields(line)
            if int(fields["layers"]):
                self.hand_offs.append(float(fields["seconds"]))
        self._log(name, line)


def read_execution(worker: str, line: str, model_layers: int) -> Execution:
    """From a line that a worker logged at the end of a step or a layer."""
    fields = read_fields(line)
    end, rows = datetime.fromisoformat(line.split(maxsplit=1)[0]).timestamp(), int(fields["rows"])
    live = LAYER in line
    before = rows * int(fields["layer"]) if live else int(fields["layers_before"])
    layers = rows if live else rows * model_layers - before
    return Execution(worker, end - float(fields["seconds"]), end, rows, layers, before, live)


def read_fields(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def total_layers(executions: Iterable[Execution]) -> int:
    return sum(one.layers for one in executions)
