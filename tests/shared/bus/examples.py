"""Messages that several tests send."""

from typing import Any

from livescale.shared.bus.contract import (
    Bus,
    Call,
    Context,
    Endpoint,
    ServiceInfo,
)
from livescale.shared.messages.registry import Named
from livescale.shared.messages.scaling import Decision


def decision(model: str) -> Decision:
    return Decision(
        id="d-1", model=model, at=1.0, action="out", current=1, target=2, rule="bounds", reason="busy", by="monitor"
    )


ECHO: Call[Named, Named] = Call("svc.echo.say", Named, Named, queue=True, doc="says it again")
ASK_ONE: Call[Named, Named] = Call("worker.{id}.say", Named, Named)
INFO = ServiceInfo("echo", "echo-0", "says what it hears")


async def echo(message: Named, context: Context) -> Named:
    return message


async def serve(bus: Bus, handler: Any = echo, limit: int = 1024) -> None:
    await bus.serve(INFO, [Endpoint(ECHO, handler, limit=limit)])
