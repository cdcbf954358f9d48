"""What came of a demo, made from its result and shown on the console."""

import msgspec
from rich.console import Console

from livescale.load.demo.run import DemoResult
from livescale.load.hardware import Hardware
from livescale.load.newcomers import NOTES, newcomer_table, tell_first_tokens, tell_slower
from livescale.load.outcome import Outcome, StreamsVerdict
from livescale.load.settings import DemoSettings
from livescale.load.stats import Period, latency_table


def make_outcome(settings: DemoSettings, happened: DemoResult, verdict: StreamsVerdict, hardware: Hardware) -> Outcome:
    start, load = happened.start, happened.load
    burst_start, burst_end = start + load.burst.start, start + (load.burst.end or load.seconds)
    return Outcome(
        start=start,
        end=happened.end,
        periods=[
            Period("before", start, burst_start),
            Period("burst", burst_start, burst_end),
            Period("after", burst_end, start + load.seconds),
        ],
        records=happened.records,
        story=happened.story,
        verdict=verdict,
        hardware=hardware,
        incidents=happened.incidents,
        prefill_seconds=prefill_seconds(happened),
        settings=describe_settings(settings, happened),
    )


def prefill_seconds(happened: DemoResult) -> float:
    asks = happened.asks
    return sum(len(ask.prompt) for ask in asks) / max(1, len(asks)) / happened.capacity.prefill_rate


def describe_settings(settings: DemoSettings, happened: DemoResult) -> dict[str, str]:
    """What the run was asked for, and what it chose itself."""
    chosen = {
        "rate_scale": happened.load.rate_scale,
        "length_scale": happened.load.length_scale,
        "one worker": f"{happened.capacity.prefill_rate:.0f} prompt tokens/s, "
        f"{happened.capacity.decode_rate:.0f} output tokens/s",
    }
    values = {**msgspec.to_builtins(settings), **chosen}
    return {
        name.replace("_", "-"): f"{round(value, 4):,}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }


def print_outcome(console: Console, outcome: Outcome) -> None:
    console.print(latency_table(outcome.summaries(), "Latency, counted from when each request was due"))
    for line in outcome.hardware.lines():
        console.print(line, highlight=False)
    newcomers = outcome.newcomers()
    if newcomers:
        console.print(newcomer_table(newcomers, outcome.records))
        for line in (*NOTES, *tell_first_tokens(newcomers, outcome.records)):
            console.print(line, highlight=False)
        for line in tell_slower(newcomers, outcome.records, outcome.prefill_seconds, outcome.incidents):
            console.print(line, highlight=False, style="yellow")
    verdict = outcome.verdict
    for line in [*verdict.faults[:10], *verdict.wrong[:10], *verdict.changed]:
        console.print(line, style="red", markup=False)
    for incident in outcome.incidents:
        console.print(f"{incident.at - outcome.start:+.1f} s  {incident.line}", style="red", markup=False)
    console.print(outcome.sentence(), style="bold green" if outcome.good else "bold red")
