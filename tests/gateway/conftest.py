"""A gateway on a real port, and behind it a scripted cluster on a local bus."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from livescale.services.gateway.access import read_keys
from livescale.services.gateway.main import Gateway
from livescale.services.gateway.settings import GatewaySettings
from livescale.shared.bus.contract import ServiceInfo
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import RandomIds, SystemClock
from livescale.shared.simulation.local_bus import LocalBroker
from tests.checkpoints import tiny_checkpoint
from tests.gateway.cluster import Cluster, running_cluster


@dataclass
class ServedGateway:
    """A gateway that serves on a real port, the scripted cluster behind it, and clients in front of it."""

    cluster: Cluster
    broker: LocalBroker
    gateway: Gateway
    client: AsyncOpenAI
    http: aiohttp.ClientSession
    tokenizer: Tokenizer
    serving: asyncio.Task[None]

    @property
    def url(self) -> str:
        return self.gateway.url

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        async with self.http.post(self.url + path, json=body) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as answer:
            return answer.status, await answer.json()

    def says(self, text: str) -> list[int]:
        """Have the cluster generate this text. Returns its tokens."""
        self.cluster.output = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.cluster.output


def openai_client(url: str, key: str) -> AsyncOpenAI:
    """A client of a gateway. It speaks plain HTTP: others read the certificates of all authorities first, which takes
    half as long as to start a gateway."""
    http = DefaultAsyncHttpxClient(verify=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http)


ServeGateway = Callable[..., AbstractAsyncContextManager[ServedGateway]]


@asynccontextmanager
async def serve_gateway(checkpoint: Path, **settings: object) -> AsyncIterator[ServedGateway]:
    broker = LocalBroker()
    async with running_cluster(broker, checkpoint) as cluster:
        bus = broker.connect()
        info = ServiceInfo("gateway", "gateway-0", "the gateway")
        world = World(info, "here", bus, SystemClock(), RandomIds(), Telemetry("gateway", "gateway-0"))
        chosen = GatewaySettings(**{"port": 0, **settings})  # type: ignore[arg-type]
        gateway = Gateway(world, chosen, read_keys(chosen.api_key, chosen.api_keys))
        serving = asyncio.create_task(gateway.run())
        await eventually(lambda: bool(gateway.url) or serving.done())
        key = chosen.api_key[0] if chosen.api_key else "none"
        client = openai_client(gateway.url, key)
        path = checkpoint / "tokenizer.json"  # which models of images lack
        tokenizer = Tokenizer.from_file(str(path)) if path.exists() else Tokenizer(WordLevel())
        try:
            async with client, aiohttp.ClientSession() as http:
                yield ServedGateway(cluster, broker, gateway, client, http, tokenizer, serving)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await bus.close()


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return tiny_checkpoint("qwen2")


@pytest.fixture
async def served(checkpoint: Path) -> AsyncIterator[ServedGateway]:
    async with serve_gateway(checkpoint) as opened:
        yield opened


def port_of(served: ServedGateway) -> int:
    return int(served.url.rsplit(":", 1)[1])


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds; a minute at most."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 whatever it is that is waited for, it sets no event
            await asyncio.sleep(0.002)
