"""Models of a system that starts are registered once the registry can have them read."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Stack, StackFailed
from livescale.shared.bus.contract import Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Register
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import REGISTER

SPEC = ModelSpec(name="m", path="/m", dtype="float32")


class Registry:
    """A registry that refuses so many times, then takes the model."""

    def __init__(self, refusals: int, retry_after_ms: int | None) -> None:
        self.left = refusals
        self._retry_after_ms = retry_after_ms

    async def register(self, message: Register, context: Context) -> ModelEntry:
        if self.left:
            self.left -= 1
            raise Refusal(503, "no host service is alive", self._retry_after_ms)
        return ModelEntry(spec=message.spec, state="reading")


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    made = Stack(StackSettings(), progress=lambda text: None, echo=lambda name, line: None)
    made.bus = LocalBroker().connect()
    yield made
    await made.bus.close()


async def register(stack: Stack, registry: Registry, seconds: float = 60.0) -> None:
    info = ServiceInfo("registry", "registry-0", "refuses at first")
    await stack.bus.serve(info, [Endpoint(REGISTER, registry.register)])
    await stack._register(SPEC, asyncio.get_running_loop().time() + seconds)


async def test_a_refusal_for_the_moment_is_waited_out(stack: Stack) -> None:
    registry = Registry(2, retry_after_ms=1_000)
    await register(stack, registry)
    assert registry.left == 0


@pytest.mark.parametrize(("retry_after_ms", "pause"), [(None, 0.1), (1_000, 600.0)], ids=["for good", "too late"])
async def test_a_refusal_that_stays_fails_the_start(
    stack: Stack, retry_after_ms: int | None, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is for good, or for the moment, where no time is left for another try."""
    monkeypatch.setattr("livescale.services.supervisor.stack.POLL_SECONDS", pause)
    registry = Registry(1_000, retry_after_ms)
    with pytest.raises(StackFailed, match="no host service is alive"):
        await register(stack, registry)
    assert registry.left == 999
