"""The endpoints that load and unload adapters: whose name is free, and what is refused."""

import asyncio

from msgspec.structs import replace

from tests.gateway.conftest import ServedGateway

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
TAKEN = "The name 'mine' is taken; unload that adapter first."
MINE = {"lora_name": "mine", "lora_path": "/adapters/mine"}


async def post(served: ServedGateway, path: str, body: object) -> tuple[int, dict[str, str]]:
    """The status, and of a refusal its error."""
    async with served.http.post(served.url + path, json=body) as answer:
        return answer.status, {} if answer.status == 200 else (await answer.json())["error"]


async def test_a_name_that_is_taken_is_refused(served: ServedGateway) -> None:
    assert (await post(served, LOAD, MINE))[0] == 200
    status, error = await post(served, LOAD, MINE)
    assert (status, error["param"], error["message"]) == (400, "lora_name", TAKEN)


async def test_an_adapter_that_is_loaded_again_waits_until_the_one_before_has_gone(served: ServedGateway) -> None:
    await post(served, LOAD, MINE)
    models = served.cluster.models
    models[-1] = replace(models[-1], state="removing")
    loading = asyncio.create_task(post(served, LOAD, MINE))
    await asyncio.sleep(0.2)  # of real time, as the gateway is: so long it would load too early
    assert not loading.done()
    models.pop()
    assert (await loading)[0] == 200
    assert [entry.state for entry in models] == ["ready", "ready"]


async def test_a_base_that_has_to_be_named_is_asked_for_by_the_name_of_its_field(served: ServedGateway) -> None:
    models = served.cluster.models
    models.append(replace(models[0], spec=replace(models[0].spec, name="other")))
    status, error = await post(served, LOAD, MINE)
    assert (status, error["param"]) == (400, "base_model_name")
    assert "'base_model_name' is missing; 2 are registered" in error["message"]
    assert (await post(served, LOAD, {**MINE, "base_model_name": "other"}))[0] == 200


async def test_only_adapters_are_unloaded(served: ServedGateway) -> None:
    await post(served, LOAD, MINE)
    assert (await post(served, UNLOAD, {"lora_name": "mine"}))[0] == 200
    for name in ("mine", "tiny"):
        assert (await post(served, UNLOAD, {"lora_name": name}))[0] == 404
