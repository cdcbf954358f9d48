import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from livescale.load.client import open_session
from livescale.load.target import TargetError, learn_target, make_asks
from livescale.load.trace import Arrival
from tests.load.scripted_server import ScriptedServer


async def test_the_target_says_what_must_be_said_beside_its_figures() -> None:
    server = ScriptedServer(card={"livescale": {"state": "ready", "warning": "made up"}})
    async with server.serving() as url, open_session(url, "", 10) as session:
        assert (await learn_target(session, None)).warning == "made up"


async def test_the_target_is_learnt_from_the_server() -> None:
    async with ScriptedServer().serving() as url, open_session(url, "", 10) as session:
        target = await learn_target(session, None)
        with pytest.raises(TargetError, match="no model 'big'; it has: tiny"):
            await learn_target(session, "big")
    assert (target.model, target.context) == ("tiny", 64)
    assert len(target.vocabulary) > 20
    made = make_asks((Arrival(0.0, 10, 5), Arrival(1.0, 1000, 500)), target, seed=1)
    assert [(len(ask.prompt), ask.max_tokens) for ask in made] == [(10, 5), (32, 32)]
    assert set(made[1].prompt) <= set(target.vocabulary)
    assert made == make_asks((Arrival(0.0, 10, 5), Arrival(1.0, 1000, 500)), target, seed=1)


async def test_an_absent_server_is_named() -> None:
    async with open_session("http://127.0.0.1:9", "", 10) as session:
        with pytest.raises(TargetError, match="no answer from /v1/models"):
            await learn_target(session, None)


@pytest.mark.parametrize(
    ("status", "content_type", "body", "said"),
    [
        (404, "text/html", b"<!DOCTYPE HTML><html><h1>Error response</h1></html>", "answered 404: text/html, as no"),
        (200, "text/html", b"<!DOCTYPE HTML><html></html>", "did not answer as an OpenAI server does"),
        (401, "application/json", b'{"error": {"message": "no such key"}}', "answered 401: no such key"),
        (502, "text/plain", b"upstream is away", "answered 502: upstream is away"),
    ],
)
async def test_what_is_no_server_for_models_is_told_without_its_pages(
    status: int, content_type: str, body: bytes, said: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type=content_type)

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    async with TestServer(app) as server, open_session(str(server.make_url("/")), "", 10) as session:
        with pytest.raises(TargetError, match=said) as raised:
            await learn_target(session, None)
    assert "<" not in str(raised.value)
