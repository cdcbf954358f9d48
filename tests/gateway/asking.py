"""What tests ask a gateway for, and what they make the rest of the system say."""

from livescale.shared.messages.membership import LeaseChanged, RouterReport
from livescale.shared.messages.requests import RequestLost, TokenFrame, Tokens
from livescale.shared.subjects import HEARTBEAT, LEASE, TOKENS
from tests.gateway.conftest import Site

EXTRA = {"return_token_ids": True}


ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 9, "return_token_ids": True}


WHOLE = [65, 66, 67] * 3


async def token_ids(site: Site) -> list[int]:
    answer = await site.client.completions.create(model="tiny", prompt="abc", max_tokens=9, extra_body=EXTRA)
    ids: list[int] = answer.choices[0].model_dump()["token_ids"]
    return ids


async def streamed(site: Site, **options: object) -> str:
    """The raw stream."""
    async with site.http.post(f"{site.url}/v1/completions", json={**ASK, **options, "stream": True}) as answer:
        return await answer.text()


async def router_waits(site: Site) -> float:
    async with site.http.get(f"{site.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    [line] = [line for line in lines if line.startswith("livescale_gateway_router_waits")]
    return float(line.rsplit(" ", 1)[1])


def lose(site: Site, request_id: str) -> None:
    site.cluster.bus.publish(TOKENS, RequestLost(request_id=request_id, reason="gone"), gateway="gateway-0")


def takes_office(site: Site, epoch: int) -> None:
    site.cluster.bus.publish(HEARTBEAT, RouterReport(id="router-1", epoch=epoch), service="router", id="router-1")


def taken_over(site: Site, worker: str, index: int = 0) -> None:
    """A worker says that the last request is its own now; it has made no token of it yet."""
    row = Tokens(request_id=site.cluster.submitted[-1].request_id, index=index, token_ids=[])
    site.cluster.bus.publish(TOKENS, TokenFrame(worker=worker, step=1, rows=[row]), gateway="gateway-0")


def dies(site: Site, worker: str) -> None:
    dead = LeaseChanged(service="worker", id=worker, epoch=1, state="dead", reason="silent for 2.5 s", at=1.0)
    site.cluster.bus.publish(LEASE, dead, id=worker)
