"""The door at its edges: ids, keys, sizes, routes, probes and the operator's endpoints."""

import asyncio
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from livescale.services.gateway.server import PortInUse
from tests.checkpoints import copy_checkpoint
from tests.gateway.conftest import eventually, open_site, port_of
from tests.system.test_namespaces import Site

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 2}


async def test_errors_have_openais_shape(site: Site) -> None:
    cases: list[tuple[str, str, bytes, int, str | None, str | None]] = [
        ("POST", "/v1/completions", b"{", 400, None, "invalid_json"),
        ("POST", "/v1/completions", b'{"model": 5, "prompt": "a"}', 400, "model", "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "other", "prompt": "a"}', 404, "model", "model_not_found"),
        ("POST", "/v1/chat/completions", b'{"model": "tiny"}', 400, "messages", "invalid_value"),
        ("POST", "/tokenize", b'{"model": "tiny"}', 400, "prompt", None),
        ("POST", "/detokenize", b'{"model": "tiny", "tokens": [5000]}', 400, "tokens", None),
        ("GET", "/v1/nothing", b"", 404, None, "not_found"),
        ("GET", "/v1/models/", b"", 404, "model", "model_not_found"),
        ("GET", "/v1/completions", b"", 405, None, "method_not_allowed"),
        ("DELETE", "/v1/models", b"", 405, None, "method_not_allowed"),
    ]
    for method, path, body, status, param, code in cases:
        async with site.http.request(method, site.url + path, data=body) as answer:
            error = (await answer.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (answer.status, error["param"], error["code"]) == (status, param, code), path
            assert answer.headers["x-request-id"]


async def test_too_large_bodies_are_refused(checkpoint: Path) -> None:
    async with open_site(checkpoint, max_body_bytes=2048) as site:
        status, body = await site.post("/v1/completions", {**ASK, "prompt": "x" * 3000})
        assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_a_prompt_too_large_for_the_bus_is_refused(site: Site) -> None:
    site.broker.max_payload = 600
    status, body = await site.post("/v1/completions", {**ASK, "prompt": [900] * 200})
    assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_request_ids_are_taken_over_or_given(site: Site) -> None:
    async def id_of(headers: dict[str, str]) -> str:
        async with site.http.post(f"{site.url}/v1/completions", json=ASK, headers=headers) as answer:
            return answer.headers["x-request-id"]

    assert await id_of({"x-request-id": "mine-1"}) == "mine-1"
    assert site.cluster.contexts[-1].request_id == "mine-1"
    assert await id_of({"x-request-id": "mine-1"}) == "mine-1"
    given = [await id_of({}), await id_of({"x-request-id": "x" * 200})]
    assert len({*given}) == 2
    assert len({submit.request_id for submit in site.cluster.submitted}) == 4


async def test_the_trace_goes_on_behind_the_gateway(site: Site) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for sent, expected in ((trace, trace), ("nonsense", None)):
        async with site.http.post(f"{site.url}/v1/completions", json=ASK, headers={"traceparent": sent}):
            assert site.cluster.contexts[-1].traceparent == expected


async def test_the_key_guards_the_api_and_the_operators_endpoints(checkpoint: Path) -> None:
    async with open_site(checkpoint, api_key=("secret",)) as site:
        assert [model.id async for model in site.client.models.list()] == ["tiny"]
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            for path in ("/v1/models", "/admin/v1/models", "/v1/nothing"):
                async with site.http.get(site.url + path, headers=headers) as answer:
                    assert answer.status == 401
                    assert (await answer.json())["error"]["code"] == "invalid_api_key"
        assert (await site.get("/live"))[0] == 200
        document = (await site.get("/openapi.json"))[1]
        assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


async def test_tokenize_and_detokenize_are_inverse(site: Site) -> None:
    text = "語 one 🙂 <|im_start|>two"
    status, body = await site.post("/tokenize", {"model": "tiny", "prompt": text})
    assert (status, body["max_model_len"], body["count"]) == (200, 256, len(body["tokens"]))
    assert (await site.post("/detokenize", {"model": "tiny", "tokens": body["tokens"]}))[1] == {"prompt": text}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    status, body = await site.post("/tokenize", chat)
    prompt = site.tokenizer.decode(body["tokens"], skip_special_tokens=False)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_a_long_prompt_is_encoded_as_a_short_one(site: Site) -> None:
    text = "語 one 🙂 " * 1000
    body = (await site.post("/tokenize", {"model": "tiny", "prompt": text}))[1]
    assert body["tokens"] == site.tokenizer.encode(text).ids


async def test_probes_say_what_is_missing(site: Site) -> None:
    assert await site.get("/live") == (200, {"status": "ok"})
    assert (await site.get("/version"))[1] == {"version": "0.1.0"}
    await site.get("/v1/models")  # asks the registry
    assert (await site.get("/health"))[0] == 200
    site.cluster.members.clear()
    assert await site.get("/ready") == (
        503,
        {"status": "unavailable", "bus": True, "router": False, "models": ["tiny"], "reason": "no router is alive"},
    )
    site.broker.down()
    assert (await site.get("/health"))[1]["reason"] == "the bus is disconnected"
    assert (await site.get("/live"))[0] == 200
    site.broker.up()


async def test_a_removed_model_is_not_found_any_more_though_operators_see_it_go(site: Site) -> None:
    async with site.http.delete(f"{site.url}/admin/v1/models/tiny") as answer:
        assert (answer.status, (await answer.json())["state"]) == (202, "removing")
    status, body = await site.post("/v1/completions", {"model": "tiny", "prompt": "abc"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert (await site.get("/v1/models"))[1]["data"] == []
    assert [entry["state"] for entry in (await site.get("/admin/v1/models"))[1]["data"]] == ["removing"]
    async with site.http.delete(f"{site.url}/admin/v1/models/never") as answer:
        assert answer.status == 404


async def test_operators_register_scale_and_ask_why(site: Site) -> None:
    status, entries = await site.get("/admin/v1/models")
    assert (status, [entry["spec"]["name"] for entry in entries["data"]]) == (200, ["tiny"])
    status, entry = await site.post("/admin/v1/models", {"name": "new", "path": site.cluster.models[0].spec.path})
    assert (status, entry["state"]) == (201, "reading")
    assert [model.id async for model in site.client.models.list()] == ["new", "tiny"]
    assert (await site.client.models.retrieve("new")).model_dump()["livescale"]["state"] == "cold"
    status, body = await site.post("/admin/v1/models", {"name": "new", "path": "/missing"})
    assert (status, body["error"]["code"], body["error"]["param"]) == (422, "invalid_checkpoint", "path")
    assert body["error"]["message"].startswith("model 'new': /missing: no such directory")
    status, body = await site.post("/admin/v1/scale", {"model": "tiny", "instances": 3})
    assert (status, body["target"], site.cluster.scaled[0].instances) == (202, 3, 3)
    assert (await site.post("/admin/v1/scale", {"model": "x", "instances": 3}))[0] == 404
    instance = (await site.get("/admin/v1/instances"))[1]["data"][0]
    assert (instance["id"], instance["state"], instance["workers"]) == ("instance-1", "serving", ["worker-1"])
    decisions = (await site.get("/admin/v1/decisions?model=tiny&limit=2"))[1]["data"]
    assert [one["rule"] for one in decisions] == ["within-bounds"] * 2
    assert (await site.get("/admin/v1/decisions?limit=many"))[0] == 400


async def test_a_model_that_could_not_be_read_says_why(site: Site) -> None:
    site.cluster.models[0] = msgspec.structs.replace(site.cluster.models[0], state="failed", error="truncated")
    await site.get("/admin/v1/models")  # asks the registry anew
    status, body = await site.post("/v1/completions", ASK)
    assert (status, body["error"]["code"]) == (503, "model_failed")
    assert (await site.client.models.retrieve("tiny")).model_dump()["livescale"]["error"] == "truncated"


async def test_a_model_without_a_tokenizer_is_not_registered(site: Site, tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    (directory / "tokenizer.json").unlink()
    status, body = await site.post("/admin/v1/models", {"name": "new", "path": str(directory)})
    assert (status, body["error"]["code"]) == (422, "invalid_checkpoint")
    assert f"{directory / 'tokenizer.json'} is missing" in body["error"]["message"]
    assert [entry.spec.name for entry in site.cluster.models] == ["tiny"]


async def test_what_a_host_says_of_a_checkpoint_is_a_422_as_well(site: Site, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(copy_checkpoint("qwen2", tmp_path), tmp_path / "missing"))
    status, body = await site.post("/admin/v1/models", {"name": "new", "path": str(directory)})
    assert (status, body["error"]["message"]) == (422, f"{directory}: no such directory")


async def test_an_unreadable_tokenizer_is_a_500_that_names_the_file(site: Site, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(site.cluster.models[0].spec, name="empty", path=str(tmp_path))
    site.cluster.models.append(msgspec.structs.replace(site.cluster.models[0], spec=spec))
    status, body = await site.post("/v1/completions", {**ASK, "model": "empty"})
    assert status == 500
    assert str(tmp_path / "config.json") in body["error"]["message"]


async def test_running_requests_end_before_the_gateway_does(site: Site) -> None:
    going = site.cluster.hang_before(1)
    stream = await site.client.completions.create(model="tiny", prompt="abc", max_tokens=3, stream=True)
    await anext(aiter(stream))
    site.serving.cancel()
    await eventually(lambda: not listens(port_of(site)))
    going.set_result(None)
    assert [chunk.choices[0].finish_reason async for chunk in stream] == [None, "length"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_what_takes_longer_than_the_grace_is_cancelled(checkpoint: Path) -> None:
    async with open_site(checkpoint, shutdown_grace_s=0) as site:
        never = asyncio.get_running_loop().create_future()
        site.cluster.before = lambda request, position: never
        asking = asyncio.create_task(site.post("/v1/completions", ASK))
        await eventually(lambda: len(site.cluster.submitted) == 1)
        site.serving.cancel()
        await asyncio.wait([asking, site.serving])
        assert asking.exception() is not None
        await eventually(lambda: len(site.cluster.cancelled) == 1)


async def test_the_url_is_told_in_the_ready_file(checkpoint: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    async with open_site(checkpoint, ready_file=str(ready)) as site:
        assert msgspec.json.decode(ready.read_bytes()) == {"url": site.url}
    assert os.listdir(tmp_path) == ["ready.json"]


async def test_a_port_in_use_is_an_error_that_says_so(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}: .*in use.*choose another --port"):
            await refused_start(checkpoint, port)


async def refused_start(checkpoint: Path, port: int) -> Any:
    async with open_site(checkpoint, port=port) as site:
        return await site.serving
