"""`livescale load URL`: the load generator alone, against any OpenAI-compatible server that returns token ids."""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path

import click
import msgspec
from rich.console import Console

from livescale.load.client import LoadClient, open_session, send_open_loop
from livescale.load.records import RequestRecord, find_fault, write_records
from livescale.load.settings import LoadSettings, refuse_replay_without_trace
from livescale.load.stats import Tally, duration, latency_table, summarise
from livescale.load.target import TargetError, learn_target, make_asks
from livescale.load.trace import (
    RequestShape,
    Trace,
    TraceError,
    Window,
    arrivals_in,
    calm_burst_calm,
    parse_window,
    replay,
)
from livescale.load.trace_files import read_trace
from livescale.services.cli.options import settings_options
from livescale.shared.runtime.clock import SystemClock

PROGRESS_SECONDS = 2.0


def keep_url(ctx: click.Context, param: click.Parameter, url: str) -> None:
    """The settings are the options; the argument travels beside them. OpenAI's base URLs end in /v1, ours do not."""
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not a URL; write one such as http://127.0.0.1:8000", ctx, param)
    ctx.meta["url"] = url.rstrip("/").removesuffix("/v1")


@click.command("load")
@click.argument("url", expose_value=False, callback=keep_url)
@settings_options(LoadSettings)
def load(settings: LoadSettings) -> None:
    """Send requests to URL, and print time to first token, time between tokens and throughput.

    URL is an OpenAI-compatible server. The load is open-loop: each request is sent when it is due, even if earlier ones
    have no answer yet.

    \b
    livescale load http://127.0.0.1:8000 --duration 30 --rate 2 --burst-rate 8
    livescale load http://127.0.0.1:8000 --trace AzureLLMInferenceTrace_conv.csv --window 60+120 --rate-scale 0.5

    The exit status is 1 if any stream was not complete.
    """
    trace = plan_load(settings)
    records = asyncio.run(send(click.get_current_context().meta["url"], settings, trace))
    if settings.output:
        try:
            write_records(Path(settings.output), sorted(records, key=lambda record: record.index))
        except OSError as error:
            raise click.ClickException(f"{settings.output} cannot be written: {error.strerror}") from None
    sys.exit(report(records, len(trace), settings))


def plan_load(settings: LoadSettings) -> Trace:
    """The arrivals that the settings ask for. Raises ClickException."""
    try:
        refuse_replay_without_trace(settings)
        return make_up_load(settings) if settings.trace is None else read_load(settings, Path(settings.trace))
    except (TraceError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def make_up_load(settings: LoadSettings) -> Trace:
    phases = calm_burst_calm(settings.duration, settings.rate, settings.burst_rate)
    return arrivals_in(phases, RequestShape(settings.prompt_tokens, settings.output_tokens), settings.seed)


def read_load(settings: LoadSettings, path: Path) -> Trace:
    """The part of a trace that the settings name. Raises TraceError and ValueError."""
    part = parse_window(settings.window) if settings.window else Window(0.0, settings.duration)
    trace = replay(read_trace(path), part, settings.rate_scale, settings.length_scale, settings.seed)
    if not trace:
        end = "its end" if part.end is None else f"{part.end:g} s"
        raise TraceError(f"{path}: no request between {part.start:g} s and {end}")
    return trace


async def send(url: str, settings: LoadSettings, trace: Trace) -> list[RequestRecord]:
    """Send the whole load; after Ctrl-C what has ended until then. Raises ClickException."""
    records: list[RequestRecord] = []
    tally = Tally()
    async with open_session(url, settings.api_key, settings.timeout) as session:
        try:
            target = await learn_target(session, settings.model)
        except TargetError as error:
            raise click.ClickException(f"{url}: {error}") from None
        if target.warning is not None:
            click.echo(target.warning, err=True)
        client = LoadClient(session, target.model, SystemClock(), tally)
        sending = send_open_loop(client, make_asks(trace, target, settings.seed), records)
        # After Ctrl-C the summary says what had ended by then.
        with suppress(asyncio.CancelledError):
            await with_progress(sending, tally, len(trace), client)
    return records


async def with_progress(sending: Awaitable[None], tally: Tally, total: int, client: LoadClient) -> None:
    """A line every two seconds on stderr while the load runs."""

    async def show() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            ttft, tbt = tally.recent(client.now())
            click.echo(
                f"sent {tally.sent}/{total}  running {tally.running}  failed {tally.failed}  tokens {tally.tokens}  "
                f"TTFT {duration(ttft)}  TBT {duration(tbt)}",
                err=True,
            )

    showing = asyncio.create_task(show(), name="progress")
    try:
        await sending
    finally:
        showing.cancel()
        await asyncio.wait([showing])


def report(records: list[RequestRecord], asked: int, settings: LoadSettings) -> int:
    """Print the summary; the exit code is 0 if every request's stream was complete."""
    seconds = max((record.ended for record in records), default=0.0) - min(
        (record.due for record in records), default=0.0
    )
    row = summarise("all", records, max(seconds, 1e-9))
    if settings.json:
        click.echo(msgspec.json.encode(row))
    else:
        Console().print(latency_table([row], "Latency, measured from when each request was due"))
    faults = Counter(fault for record in records if (fault := find_fault(record)))
    for fault, count in faults.most_common(10):
        click.echo(f"{count} x {fault}", err=True)
    if len(records) < asked:
        click.echo(f"interrupted: {asked - len(records)} of {asked} requests did not end", err=True)
    return 1 if faults or len(records) < asked else 0
