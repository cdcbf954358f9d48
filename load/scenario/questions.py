"""What `livescale status` and `livescale why` would print at a moment of a simulation."""

import asyncio
from typing import NamedTuple

import click

from livescale.load.simulate.cluster import VirtualCluster
from livescale.services.cli.status import ask_status, print_status
from livescale.services.cli.status_view import Status
from livescale.services.cli.why import MOST_DECISIONS, Why, ask_why, explain
from livescale.shared.bus.contract import BusError

SHOWN = 1_000  # decisions


class Question(NamedTuple):
    """Asked at second `at`: of everything, or why `model` was scaled."""

    at: float
    model: str = ""


class Answer(NamedTuple):
    """What came; a text if nobody could answer, such as a registry that was dead then."""

    question: Question
    found: Status | Why | str


async def put(made: VirtualCluster, question: Question, begun: float) -> Answer:
    """Ask when it is time. The run stays what it would be without the question."""
    await asyncio.sleep(begun + question.at - made.now)
    seconds = made.settings.message_seconds
    bus = made.broker.connect(delays=lambda subject: (seconds,))
    try:
        found: Status | Why = await (
            ask_why(bus, question.model, SHOWN, MOST_DECISIONS) if question.model else ask_status(bus)
        )
    except BusError as error:
        return Answer(question, str(error))
    finally:
        await bus.close()
    return Answer(question, found)


def show(answer: Answer) -> None:
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
