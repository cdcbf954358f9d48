"""The system that is disturbed: what runs in it, what of that may be hit, and how its gateways are reached."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from livescale.load.chaos.schedule import Targets
from livescale.load.chaos.settings import ChaosSettings
from livescale.load.client import open_session
from livescale.services.supervisor.settings import Bounds, ModelSettings, StackSettings

MODEL = "chaos"
MIB = 1024 * 1024
REQUEST_SECONDS = 180.0
# Links are so slow that parameters take a while, in which somebody can die.
LOAD_SECONDS = 1.5
# A few requests at an instance ask for another one, whatever the machine can do.
BOUNDS = Bounds(decode_lo=0.2, decode_hi=0.3)
DOWNSCALE_SECONDS = 3.0


def stack_settings(settings: ChaosSettings, checkpoint: Path) -> StackSettings:
    parameters = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    model = ModelSettings(name=MODEL, path=str(checkpoint), bounds=BOUNDS, downscale_delay_s=DOWNSCALE_SECONDS)
    return StackSettings(
        models=(model,),
        workers=settings.workers,
        gateways=settings.gateways,
        routers=settings.routers,
        port=0,
        device="cpu",  # as the undisturbed engine that every token is compared with
        dtype=settings.dtype,
        arena_bytes=2 * parameters + 64 * MIB,
        kv_bytes=128 * MIB,
        transport=settings.transport,
        link_rate=parameters / LOAD_SECONDS,
        live=settings.live,
        live_every_hop=settings.live_every_hop,
        live_when=settings.live_when,
        ttft_slo=settings.ttft_slo,
    )


def choose_targets(settings: ChaosSettings) -> Targets:
    """Processes of the services that may be disturbed. Raises ValueError for a service that there is none of."""
    several = {"worker": settings.workers, "gateway": settings.gateways, "router": settings.routers}
    named = {service: [f"{service}-{index}" for index in range(count)] for service, count in several.items()}
    named |= {service: [f"{service}-0"] for service in ("registry", "planner", "monitor", "host")}
    named["nats"] = ["nats"]
    chosen = settings.disturb.split(",")
    for service in chosen:
        if service not in named:
            raise ValueError(f"--disturb: no {service!r} runs here; there are: {', '.join(named)}")
    others = [name for service in chosen if service != "worker" for name in named[service]]
    return Targets(named["worker"] if "worker" in chosen else [], others, settings.workers)


@asynccontextmanager
async def open_sessions(urls: Mapping[str, str]) -> AsyncIterator[dict[str, aiohttp.ClientSession]]:
    """A session for each gateway, by its name."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(open_session(url, "", REQUEST_SECONDS)) for name, url in urls.items()
        }
