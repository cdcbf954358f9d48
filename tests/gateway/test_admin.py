"""What operators ask and order, and what they are told where it cannot be."""

import shutil
from pathlib import Path

from tests.checkpoints import copy_checkpoint
from tests.gateway.conftest import ServedGateway


async def test_a_removed_model_is_not_found_any_more_though_operators_see_it_go(served: ServedGateway) -> None:
    async with served.http.delete(f"{served.url}/admin/v1/models/tiny") as answer:
        assert (answer.status, (await answer.json())["state"]) == (202, "removing")
    status, body = await served.post("/v1/completions", {"model": "tiny", "prompt": "abc"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert (await served.get("/v1/models"))[1]["data"] == []
    assert [entry["state"] for entry in (await served.get("/admin/v1/models"))[1]["data"]] == ["removing"]
    async with served.http.delete(f"{served.url}/admin/v1/models/never") as answer:
        assert answer.status == 404


async def test_operators_register_scale_and_ask_why(served: ServedGateway) -> None:
    status, entries = await served.get("/admin/v1/models")
    assert (status, [entry["spec"]["name"] for entry in entries["data"]]) == (200, ["tiny"])
    status, entry = await served.post("/admin/v1/models", {"name": "new", "path": served.cluster.models[0].spec.path})
    assert (status, entry["state"]) == (201, "reading")
    assert [model.id async for model in served.client.models.list()] == ["new", "tiny"]
    assert (await served.client.models.retrieve("new")).model_dump()["livescale"]["state"] == "cold"
    status, body = await served.post("/admin/v1/models", {"name": "new", "path": "/missing"})
    assert (status, body["error"]["code"], body["error"]["param"]) == (422, "invalid_checkpoint", "path")
    assert body["error"]["message"].startswith("model 'new': /missing: no such directory")
    status, body = await served.post("/admin/v1/scale", {"model": "tiny", "instances": 3})
    assert (status, body["target"], served.cluster.scaled[0].instances) == (202, 3, 3)
    assert (await served.post("/admin/v1/scale", {"model": "x", "instances": 3}))[0] == 404
    instance = (await served.get("/admin/v1/instances"))[1]["data"][0]
    assert (instance["id"], instance["state"], instance["workers"]) == ("instance-1", "serving", ["worker-1"])
    decisions = (await served.get("/admin/v1/decisions?model=tiny&limit=2"))[1]["data"]
    assert [one["rule"] for one in decisions] == ["within-bounds"] * 2
    assert (await served.get("/admin/v1/decisions?limit=many"))[0] == 400


async def test_operators_give_instances_roles(served: ServedGateway) -> None:
    status, body = await served.post("/admin/v1/role", {"worker": "worker-1", "role": "prefill"})
    assert (status, body["instance"], body["before"], body["role"]) == (200, "instance-1", "colocated", "prefill")
    assert (await served.post("/admin/v1/role", {"worker": "worker-9", "role": "prefill"}))[0] == 404
    status, body = await served.post("/admin/v1/role", {"worker": "worker-1", "role": "both"})
    assert (status, body["error"]["param"]) == (400, "role")


async def test_a_model_without_a_tokenizer_is_not_registered(served: ServedGateway, tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    (directory / "tokenizer.json").unlink()
    status, body = await served.post("/admin/v1/models", {"name": "new", "path": str(directory)})
    assert (status, body["error"]["code"]) == (422, "invalid_checkpoint")
    assert f"{directory / 'tokenizer.json'} is missing" in body["error"]["message"]
    assert [entry.spec.name for entry in served.cluster.models] == ["tiny"]


async def test_what_a_host_says_of_a_checkpoint_is_a_422_as_well(served: ServedGateway, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(copy_checkpoint("qwen2", tmp_path), tmp_path / "missing"))
    status, body = await served.post("/admin/v1/models", {"name": "new", "path": str(directory)})
    assert (status, body["error"]["message"]) == (422, f"{directory}: no such directory")
