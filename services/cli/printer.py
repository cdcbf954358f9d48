"""What `livescale up` and its processes print on stderr: lines for people, or JSON and nothing else."""

import json
from datetime import UTC, datetime
from typing import Literal, Protocol

import click

SELF = "up"


class UpPrinter(Protocol):
    """Shows a person, or a program, how a system comes up and goes on."""

    def line(self, name: str, line: str) -> None:
        """Print a line that the process `name` wrote."""

    def progress(self, text: str) -> None:
        """Print how far `livescale up` has come with its own work."""

    def ended(self, name: str, reason: str) -> None:
        """Print how the process `name` ended, and what is done about it."""


def make_printer(form: Literal["text", "json"]) -> UpPrinter:
    return JsonPrinter() if form == "json" else TextPrinter()


class TextPrinter:
    """Prints each line behind the name of the process that wrote it."""

    def line(self, name: str, line: str) -> None:
        click.echo(f"{name:<10} | {line}", err=True)

    def progress(self, text: str) -> None:
        self.line(SELF, text)

    def ended(self, name: str, reason: str) -> None:
        self.line(name, f"(supervisor) {reason}")


class JsonPrinter:
    """Prints JSON objects only. A line that a process prints before it logs JSON becomes an event too."""

    def line(self, name: str, line: str) -> None:
        if is_object(line):
            click.echo(line, err=True)
        elif line:
            self._event("info", "output", name, line=line)

    def progress(self, text: str) -> None:
        self._event("info", "progress", SELF, message=text)

    def ended(self, name: str, reason: str) -> None:
        self._event("warning", "process_ended", name, reason=reason)

    def failed(self, error: str) -> None:
        """Print the error that ends `up`, where click would print a line for people."""
        self._event("error", "up_failed", SELF, error=error)

    @staticmethod
    def _event(level: str, event: str, id: str, **fields: str) -> None:
        service = id.rpartition("-")[0] or id
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        told = {**fields, "event": event, "service": service, "id": id, "level": level, "timestamp": at}
        click.echo(json.dumps(told), err=True)


def is_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
