"""Adapters through the whole system: named at the start or loaded later, in a live scale, and past a worker's death."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
import pytest
from safetensors.torch import load_file, save_file

from livescale.load.client import LoadClient, open_session, send_open_loop
from livescale.load.make_adapter import make_adapter
from livescale.load.records import RequestRecord, find_fault
from livescale.load.rightness import CheckedStream, check_streams
from livescale.load.stats import Tally
from livescale.shared.model.declaration.adapter import ADAPTER_CONFIG, ADAPTER_FILE, DOWN, STORED_PREFIX, UP
from livescale.shared.runtime.clock import SystemClock
from tests.checkpoints import copy_checkpoint, tiny_checkpoint
from tests.system.conftest import System, started
from tests.system.test_system import asks, workers

pytestmark = pytest.mark.system

RANK, ALPHA = 20, 30.0
MIB = 1 << 20  # there is room for one adapter, which takes 649 kB, and not for two
# Links are so slow that a model takes four seconds, which no spare has left from another test.
OPTIONS = (
    *("--adapter-bytes", str(MIB), "--link-rate", "1e6", "--live", "zigzag"),
    *("--workers", "3", "--no-keep-parameters", "--scaling", "advisory"),  # only commands scale
)
NAMES = ("m", "mine", "other")


@dataclass(frozen=True)
class AdaptedSystem:
    """A system, and by the name of each adapter its directory and a checkpoint with it merged."""

    system: System
    adapters: dict[str, Path]
    checkpoints: dict[str, Path]
    log: Path


def merged(adapter: Path, to: Path, family: str = "llama") -> Path:
    """The checkpoint with the adapter's products added to its matrices in float32."""
    directory = copy_checkpoint(family, to)
    tensors = {
        name: tensor.float() for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()
    }
    added = load_file(adapter / ADAPTER_FILE)
    for name, down in added.items():
        if name.endswith(DOWN):
            stem = name.removesuffix(DOWN)
            tensors[stem.removeprefix(STORED_PREFIX) + ".weight"] += ALPHA / RANK * (added[stem + UP] @ down)
    for file in directory.glob("*.safetensors*"):
        file.unlink()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdaptedSystem]:
    """One model with an adapter from the start, and another adapter that is not loaded yet."""
    directory = tmp_path_factory.mktemp("adapters")
    base = tiny_checkpoint("llama")
    adapters = {
        name: make_adapter(directory / name, base, RANK, ALPHA, seed=seed) for seed, name in enumerate(NAMES[1:])
    }
    checkpoints = {name: merged(adapter, directory / f"{name}-merged") for name, adapter in adapters.items()}
    with started(directory, "--lora", f"mine={adapters['mine']}", *OPTIONS) as system:
        yield AdaptedSystem(system, adapters, {"m": base, **checkpoints}, directory / "up.log")


async def send(system: System, count: int, names: Sequence[str]) -> dict[str, dict[int, RequestRecord]]:
    """What each model or adapter makes of the same prompts, all at once."""
    records: dict[str, list[RequestRecord]] = {name: [] for name in names}
    async with open_session(system.url, "", 60.0) as session:
        clients = {name: LoadClient(session, name, SystemClock(), Tally()) for name in names}
        await asyncio.gather(*(send_open_loop(clients[name], asks(count, 200.0, 3), records[name]) for name in names))
    return {name: {record.index: record for record in own} for name, own in records.items()}


def check(adapted: AdaptedSystem, answers: dict[str, dict[int, RequestRecord]], count: int) -> None:
    """Check that all streams are whole, and right by transformers with the adapter merged."""
    for name, records in answers.items():
        assert [fault for record in records.values() if (fault := find_fault(record))] == []
        streams = [
            CheckedStream(prompt=ask.prompt, generated=records[ask.index].token_ids) for ask in asks(count, 200.0, 3)
        ]
        verdict = check_streams(adapted.checkpoints[name], streams, "float32")
        assert verdict.ok, f"{name}: {verdict}"


async def post(system: System, path: str, body: Mapping[str, object]) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.post(system.url + path, json=body) as answer:
        return answer.status, await answer.text()


def live_layers(metrics: str) -> list[float]:
    """How many layers each worker ran while others were missing."""
    lines = metrics.splitlines()
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("livescale_worker_live_layers_total{")]


def test_adapters_are_listed_with_their_parent(adapted: AdaptedSystem) -> None:
    with openai.OpenAI(base_url=f"{adapted.system.url}/v1", api_key="none") as client:
        client.models.retrieve("mine")  # it is listed a second later at the latest, and known at once
        cards = {model.id: model.model_dump() for model in client.models.list()}
        assert [(id, card["parent"]) for id, card in sorted(cards.items())] == [("m", None), ("mine", "m")]
        assert cards["mine"]["root"] == str(adapted.adapters["mine"])
        answers = [client.completions.create(model=name, prompt="hello", max_tokens=8, temperature=0) for name in cards]
        assert [answer.model for answer in answers] == list(cards)
        assert answers[0].choices[0].text != answers[1].choices[0].text
        with pytest.raises(openai.BadRequestError, match="is an adapter"):
            client.embeddings.create(model="mine", input="hello")


async def test_an_adapter_is_loaded_used_and_unloaded(adapted: AdaptedSystem) -> None:
    system, path = adapted.system, str(adapted.adapters["other"])
    body = {"lora_name": "other", "lora_path": path}
    assert await post(system, "/v1/load_lora_adapter", body) == (
        200,
        "Success: LoRA adapter 'other' added successfully.",
    )
    assert (await post(system, "/v1/load_lora_adapter", body))[0] == 400
    check(adapted, await send(system, 4, NAMES), 4)
    assert "adapter_evicted" in adapted.log.read_text()
    assert "is an adapter" in system.command("scale", "other", "--instances", "1", check=False).stderr
    assert (await post(system, "/v1/unload_lora_adapter", {"lora_name": "other"}))[0] == 200
    assert (await post(system, "/v1/completions", {"model": "other", "prompt": "x"}))[0] == 404
    assert (await post(system, "/v1/unload_lora_adapter", {"lora_name": "m"}))[0] == 404


async def test_an_adapter_that_does_not_fit_is_refused_by_name(adapted: AdaptedSystem, tmp_path: Path) -> None:
    spoiled = Path(shutil.copytree(adapted.adapters["mine"], tmp_path / "spoiled"))
    said = json.loads((spoiled / ADAPTER_CONFIG).read_text())
    (spoiled / ADAPTER_CONFIG).write_text(json.dumps({**said, "use_dora": True}))
    for directory, told in ((spoiled, "use_dora"), (tmp_path / "none", "no such directory")):
        status, text = await post(
            adapted.system, "/v1/load_lora_adapter", {"lora_name": "bad", "lora_path": str(directory)}
        )
        assert (status, told in text) == (422, True), text


async def test_tokens_stay_right_while_the_model_scales_and_when_a_worker_dies(adapted: AdaptedSystem) -> None:
    system, names = adapted.system, ("m", "mine")
    before = await send(system, 30, names)
    scaling = asyncio.create_task(asyncio.to_thread(system.command, "scale", "m", "--instances", "3", "--wait"))
    while not await asyncio.to_thread(workers, system, "live"):
        assert not scaling.done(), "it was never live"
    during = await send(system, 80, names)  # so many that the source still has some as the target gets the adapter
    await scaling
    check(adapted, before, 30)
    told = await asyncio.to_thread(system.command, "metrics")
    assert sum(live_layers(told.stdout)) > 0
    sending = asyncio.create_task(send(system, 30, names))
    await asyncio.sleep(0.5)
    pids = {process["id"]: process["pid"] for process in system.status()["processes"]}
    os.kill(pids[workers(system, "serving")[0]], signal.SIGKILL)
    after = await sending
    tokens = [
        {(name, index): record.token_ids for name in names for index, record in answers[name].items()}
        for answers in (before, during, after)
    ]
    assert tokens[0] == tokens[2]
    assert tokens[1].items() > tokens[0].items()
