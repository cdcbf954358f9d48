"""A real Prometheus that reads a running system, with the rules that are committed."""

import asyncio
import json
import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from livescale.services.supervisor.ports import free_port
from tests.observability import PROMETHEUS
from tests.system.conftest import LIVESCALE

PROGRAM = shutil.which("prometheus")
START_SECONDS = 120.0
SCRAPE = "1s"


@dataclass(frozen=True)
class Prometheus:
    """Its API, as far as tests ask it."""

    http: aiohttp.ClientSession
    file: Path

    def targets(self) -> list[dict[str, Any]]:
        """What it was told to read: the content of its file of targets."""
        found: list[dict[str, Any]] = json.loads(self.file.read_text())
        return found

    async def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an expression now. A malformed one fails with Prometheus' own words."""
        async with self.http.get("/api/v1/query", params={"query": expr}) as answer:
            found = await answer.json()
        assert found["status"] == "success", f"{expr}: {found.get('error')}"
        samples: list[dict[str, Any]] = found["data"]["result"]
        return samples

    async def finite(self, expr: str) -> list[float]:
        """The values of an expression that are numbers: no division by zero, no quantile of nothing."""
        values = [float(sample["value"][1]) for sample in await self.query(expr)]
        return [value for value in values if math.isfinite(value)]

    async def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        async with self.http.get("/api/v1/alerts") as answer:
            alerts = (await answer.json())["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def fires(self, name: str, seconds: float) -> None:
        """Wait until an alert fires."""
        async with asyncio.timeout(seconds):
            while name not in await self.firing():  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.5)

    async def reads(self, processes: int) -> None:
        """Wait until so many processes are read."""
        async with asyncio.timeout(START_SECONDS):
            while len(await self.query("up == 1")) < processes:  # noqa: ASYNC110  # the same
                await asyncio.sleep(0.5)


@asynccontextmanager
async def prometheus(directory: Path, env: dict[str, str]) -> AsyncIterator[Prometheus]:
    """Prometheus with the committed configuration, read every second, and the command that keeps its targets.

    `env` is the environment by which that command finds the system.
    """
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(PROMETHEUS / "rules.yml", directory)
    [job] = config["scrape_configs"]
    [targets] = job["file_sd_configs"][0]["files"]
    address = f"127.0.0.1:{free_port()}"
    assert PROGRAM is not None
    server = (
        *(PROGRAM, "--config.file=prometheus.yml", "--storage.tsdb.path=data"),
        *(f"--web.listen-address={address}", "--log.level=error"),
    )
    keeper = (str(LIVESCALE), "metrics", "--targets", targets, "--every", "1")
    running = [await asyncio.create_subprocess_exec(*words, cwd=directory, env=env) for words in (keeper, server)]
    try:
        async with aiohttp.ClientSession(f"http://{address}") as http:
            await _ready(http)
            yield Prometheus(http, directory / targets)
    finally:
        for process in running:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _ready(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                async with http.get("/-/ready") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectorError:
                pass
            await asyncio.sleep(0.1)
