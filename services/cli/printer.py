"""What `livescale up` prints of itself and of its processes on stderr: lines for people, or JSON alone."""

import json
from datetime import UTC, datetime
from typing import Literal, Protocol

import click

SELF = "up"


class UpPrinter(Protocol):
    def line(self, name: str, line: str) -> None:
        """What a process wrote."""

    def progress(self, text: str) -> None:
        """What `up` itself has to say."""

    def ended(self, name: str, reason: str) -> None:
        """How a process ended, and what is done."""


def make_printer(form: Literal["text", "json"]) -> UpPrinter:
    return JsonPrinter() if form == "json" else TextPrinter()


class TextPrinter:
    """Each line with the name of who says it."""

    def line(self, name: str, line: str) -> None:
        click.echo(f"{name:<10} | {line}", err=True)

    def progress(self, text: str) -> None:
        self.line(SELF, text)

    def ended(self, name: str, reason: str) -> None:
        self.line(name, f"(supervisor) {reason}")


class JsonPrinter:
    """Processes write JSON as well; of what they print before they are that far an event is made."""

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
        """Where click would print a line for people."""
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
