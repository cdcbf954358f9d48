"""What tests ask of a gateway, and what they have routers and workers say to it."""

from livescale.services.gateway.request_stream import RequestStream
from livescale.shared.messages.membership import LeaseChanged, RouterReport
from livescale.shared.messages.requests import RequestLost, TokenFrame, Tokens
from livescale.shared.subjects import HEARTBEAT, LEASE, TOKENS
from tests.gateway.conftest import ServedGateway

EXTRA = {"return_token_ids": True}
ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 9, "return_token_ids": True}
WHOLE = [65, 66, 67] * 3  # what the cluster generates


async def token_ids(served: ServedGateway) -> list[int]:
    """Ask for the whole answer, and return its tokens."""
    answer = await served.client.completions.create(model="tiny", prompt="abc", max_tokens=9, extra_body=EXTRA)
    ids: list[int] = answer.choices[0].model_dump()["token_ids"]
    return ids


async def streamed(served: ServedGateway, **options: object) -> str:
    """Ask for a stream, and return its text."""
    async with served.http.post(f"{served.url}/v1/completions", json={**ASK, **options, "stream": True}) as answer:
        return await answer.text()


async def router_waits(served: ServedGateway) -> float:
    """Return the metric of requests that wait for a router."""
    async with served.http.get(f"{served.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    [line] = [line for line in lines if line.startswith("livescale_gateway_router_waits")]
    return float(line.rsplit(" ", 1)[1])


def only_stream(served: ServedGateway) -> RequestStream:
    """The gateway's stream of the only request under way."""
    [stream] = served.gateway._streams._streams.values()
    return stream


def lose(served: ServedGateway, request_id: str) -> None:
    """Have the router say that the request is lost."""
    served.cluster.bus.publish(TOKENS, RequestLost(request_id=request_id, reason="gone"), gateway="gateway-0")


def takes_office(served: ServedGateway, epoch: int) -> None:
    """Have a router say, with its heartbeat, that it is the active one."""
    served.cluster.bus.publish(HEARTBEAT, RouterReport(id="router-1", epoch=epoch), service="router", id="router-1")


def taken_over(served: ServedGateway, worker: str, index: int = 0) -> None:
    """A worker says that the last request is its own now; it has made no token of it yet."""
    row = Tokens(request_id=served.cluster.submitted[-1].request_id, index=index, token_ids=[])
    served.cluster.bus.publish(TOKENS, TokenFrame(worker=worker, step=1, rows=[row]), gateway="gateway-0")


def dies(served: ServedGateway, worker: str) -> None:
    """Have the registry say that a worker is dead."""
    dead = LeaseChanged(service="worker", id=worker, epoch=1, state="dead", reason="silent for 2.5 s", at=1.0)
    served.cluster.bus.publish(LEASE, dead, id=worker)
