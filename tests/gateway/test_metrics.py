"""What a gateway counts is what its clients count."""

from livescale.services.gateway.metrics import GatewayMetrics
from livescale.shared.process.telemetry import Telemetry
from tests.clocks import LoopClock
from tests.gateway.conftest import ServedGateway, eventually


class StandingClock(LoopClock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds


def test_the_request_that_waits_longest_is_timed() -> None:
    telemetry, clock = Telemetry("gateway", "gateway-0"), StandingClock()
    model = GatewayMetrics(telemetry, clock).of_model("m")
    shown = telemetry.exposition()
    assert 'livescale_gateway_held{model_name="m"} 0.0' in shown
    assert 'livescale_gateway_oldest_held_seconds{model_name="m"} 0.0' in shown
    model.held.update({"req-1": 90.0, "req-2": 97.5})
    shown = telemetry.exposition()
    assert 'livescale_gateway_held{model_name="m"} 2.0' in shown
    assert 'livescale_gateway_oldest_held_seconds{model_name="m"} 10.0' in shown
    del model.held["req-1"]
    clock.seconds = 101.0
    assert 'livescale_gateway_oldest_held_seconds{model_name="m"} 3.5' in telemetry.exposition()


async def counted(served: ServedGateway) -> tuple[float, float]:
    """Prompt and generated tokens, as /metrics tells them."""
    async with served.http.get(f"{served.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    names = ("livescale_gateway_prompt_tokens_total", "livescale_gateway_generation_tokens_total")
    prompt, generated = (
        sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{")) for name in names
    )
    return prompt, generated


async def test_tokens_are_those_of_usage_streamed_or_not(served: ServedGateway) -> None:
    await served.get("/v1/models")
    assert await counted(served) == (0, 0)
    whole = await served.client.completions.create(model="tiny", prompt=["abc", "de"], max_tokens=4)
    stream = await served.client.completions.create(
        model="tiny", prompt="abc", max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    usages = [whole.usage, *[chunk.usage async for chunk in stream if chunk.usage is not None]]
    told = [(usage.prompt_tokens, usage.completion_tokens) for usage in usages if usage is not None]
    assert len(told) == 2
    assert await counted(served) == (sum(prompt for prompt, _ in told), sum(tokens for _, tokens in told))


async def test_a_request_that_ends_without_a_token_is_held_no_more(served: ServedGateway) -> None:
    held = served.gateway._metrics.of_model("tiny").held
    served.cluster.output = []
    async with served.http.post(
        f"{served.url}/v1/completions", json={"model": "tiny", "prompt": "abc", "stream": True, "timeout": 30}
    ) as answer:
        await eventually(lambda: len(held) == 1)
        answer.close()
    await eventually(lambda: not held)
