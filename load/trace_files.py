"""Reads published request traces; a file's format is recognised by its header.

The formats are Azure CSV (Splitwise, ISCA'24), BurstGPT CSV, Mooncake JSONL (FAST'25), and a plain CSV with the columns
arrival_s,prompt,output.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from livescale.load.trace import Arrival, Trace, TraceError

T = TypeVar("T", int, float)


@dataclass(frozen=True)
class Form:
    """The columns of one CSV form. `lists_failures`: requests that got no answer are rows with an output of 0."""

    name: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[str], float]
    from_first: bool = False
    lists_failures: bool = False

    @property
    def columns(self) -> tuple[str, str, str]:
        return (self.time, self.prompt, self.output)


class MooncakeRow(msgspec.Struct, frozen=True):
    """One line of a Mooncake trace; `hash_ids` (which prefixes are shared) is not used here."""

    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=1)]
    output_length: Annotated[int, Meta(ge=1)]


def read_trace(path: Path) -> Trace:
    """All requests of a trace file in order of arrival. Raises TraceError."""
    try:
        # Spreadsheets put a byte order mark in front of the header.
        with path.open(encoding="utf-8-sig", newline="") as lines:
            opening = lines.read(1)
            lines.seek(0)
            rows = read_jsonl(path, lines) if opening == "{" else read_csv(path, lines)
            arrivals = list(rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: not a readable trace: {error}") from error
    if not arrivals:
        raise TraceError(f"{path}: no request in it")
    # Published traces are in order but for equal or nearly equal stamps.
    return tuple(sorted(arrivals, key=lambda arrival: arrival.at))


def read_jsonl(path: Path, lines: Iterator[str]) -> Iterator[Arrival]:
    decoder = msgspec.json.Decoder(MooncakeRow)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        yield Arrival(row.timestamp / 1000, row.input_length, row.output_length)


def read_csv(path: Path, lines: Iterator[str]) -> Iterator[Arrival]:
    reader = csv.DictReader(lines)
    reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
    form = recognise(path, reader.fieldnames)
    start: float | None = None
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        stamp = column(where, row, form.time, form.seconds)
        output = column(where, row, form.output, tokens if not form.lists_failures else tokens_or_none)
        if start is None:
            start = stamp if form.from_first else 0.0
        # A request that failed where the trace was taken has no lengths to replay.
        if output:
            yield Arrival(max(0.0, stamp - start), column(where, row, form.prompt, tokens), output)


def recognise(path: Path, names: Sequence[str]) -> Form:
    for form in FORMS:
        if set(form.columns) <= set(names):
            return form
    known = "; ".join(f"{form.name}: {', '.join(form.columns)}" for form in FORMS)
    raise TraceError(f"{path}, line 1: unknown columns {list(names)}. Known are {known}; Mooncake: JSON lines")


def column(where: str, row: Mapping[str, str | None], name: str, parse: Callable[[str], T]) -> T:
    text = row.get(name)
    if text is None:
        raise TraceError(f"{where}, column {name!r}: missing")
    try:
        return parse(text.strip())
    except ValueError as error:
        raise TraceError(f"{where}, column {name!r}: {error}") from None


def date(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ValueError(f"{text!r} is not a time, as in 2023-11-16 18:15:46.68") from None


def seconds(text: str) -> float:
    value = float(text) if text else math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def tokens(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of tokens, 1 or more")
    return int(text)


def tokens_or_none(text: str) -> int:
    return 0 if text == "0" else tokens(text)


FORMS = (
    Form("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", date, from_first=True),
    Form("BurstGPT", "Timestamp", "Request tokens", "Response tokens", seconds, lists_failures=True),
    Form("plain", "arrival_s", "prompt", "output", seconds),
)
