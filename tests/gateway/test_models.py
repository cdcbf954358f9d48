"""Models as the registry reports them, and what clients are told of models whose files cannot be read."""

from pathlib import Path

import msgspec
import pytest

from tests.gateway.conftest import ServedGateway

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 2}


async def test_a_long_prompt_is_encoded_as_a_short_one(served: ServedGateway) -> None:
    text = "語 one 🙂 " * 1000
    body = (await served.post("/tokenize", {"model": "tiny", "prompt": text}))[1]
    assert body["tokens"] == served.tokenizer.encode(text).ids


async def test_a_model_that_could_not_be_read_says_why(served: ServedGateway) -> None:
    served.cluster.models[0] = msgspec.structs.replace(served.cluster.models[0], state="failed", error="truncated")
    await served.get("/admin/v1/models")  # asks the registry anew
    status, body = await served.post("/v1/completions", ASK)
    assert (status, body["error"]["code"]) == (503, "model_failed")
    assert (await served.client.models.retrieve("tiny")).model_dump()["livescale"]["error"] == "truncated"


async def test_an_unreadable_tokenizer_is_a_500_that_names_the_file(served: ServedGateway, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(served.cluster.models[0].spec, name="empty", path=str(tmp_path))
    served.cluster.models.append(msgspec.structs.replace(served.cluster.models[0], spec=spec))
    status, body = await served.post("/v1/completions", {**ASK, "model": "empty"})
    assert status == 500
    assert str(tmp_path / "config.json") in body["error"]["message"]


async def test_the_only_model_need_not_be_named(served: ServedGateway) -> None:
    unnamed = {"prompt": "abc", "max_tokens": 2}
    status, body = await served.post("/v1/completions", {**unnamed, "model": None})
    assert (status, body["model"]) == (200, "tiny")
    assert served.cluster.submitted[0].model == "tiny"
    spec = msgspec.structs.replace(served.cluster.models[0].spec, name="other")
    served.cluster.models.append(msgspec.structs.replace(served.cluster.models[0], spec=spec))
    await served.get("/admin/v1/models")  # asks the registry anew
    status, body = await served.post("/v1/completions", unnamed)
    assert (status, body["error"]["param"]) == (400, "model")
    assert "2 are registered" in body["error"]["message"]


@pytest.mark.parametrize("is_adapter", [False, True])
async def test_what_has_just_been_read_is_served_at_once(served: ServedGateway, is_adapter: bool) -> None:
    replace, models = msgspec.structs.replace, served.cluster.models
    if is_adapter:
        models.append(replace(models[0], spec=replace(models[0].spec, name="mine", base="tiny")))
    read = models[-1]
    models[-1] = replace(read, version=None, max_model_len=0)
    await served.get("/admin/v1/models")  # asks the registry anew
    ask = {**ASK, "model": read.spec.name}
    status, body = await served.post("/v1/completions", ask)
    assert (status, body["error"]["code"]) == (503, "model_loading")
    models[-1] = read
    assert (await served.post("/v1/completions", ask))[0] == 200
