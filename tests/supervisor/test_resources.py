"""What each worker gets: memory, and a GPU of a topology."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from livescale.services.supervisor.checks import BadSettings, count_workers, resolve_form
from livescale.services.supervisor.commands import service_commands
from livescale.services.supervisor.credentials import ROLES
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.resources import (
    LEAST_KV,
    MOST_KV,
    ROOM,
    SLOTS,
    ModelSize,
    Placement,
    measure_models,
    place_workers,
    resolve_memory,
)
from livescale.services.supervisor.settings import MIB, StackSettings
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.memory.arena import Arena
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import tiny_checkpoint
from tests.supervisor.test_commands import resolve

SMALL = ModelSize("small", arena_bytes=2 * MIB, token_bytes=512, tokens=4096)
LARGE = ModelSize("large", arena_bytes=900 * MIB, token_bytes=12_288, tokens=32_768)

URLS = dict.fromkeys(ROLES, "nats://127.0.0.1:1")


def settings(path: Path, **more: object) -> StackSettings:
    models = (ModelSettings(name="m", path=str(path)),)
    return resolve_form(StackSettings(models=models, **more), "float32", "plain")  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_fits_an_arena_of_the_size_that_is_known_beforehand(ranks: int) -> None:
    told = settings(tiny_checkpoint("qwen2"), tensor_parallel_size=ranks)
    [size] = measure_models(told)
    config = load_model_config(tiny_checkpoint("qwen2"))
    blocks = block_layouts(config, "float32", ranks, "plain")
    Arena(size.arena_bytes).place([block.size_bytes for block in blocks[: len(blocks) // ranks]])
    assert size.arena_bytes < 1.1 * sum(block.size_bytes for block in blocks) / ranks + 100_000
    heads = max(1, config.num_key_value_heads // ranks)
    assert size.token_bytes == 2 * config.num_hidden_layers * heads * config.head_dim * 4
    assert size.tokens == config.max_position_embeddings


def test_small_models_get_small_workers() -> None:
    told = resolve_memory(StackSettings(), [SMALL])
    assert told.arena_bytes == 2 * 2 * MIB + ROOM
    assert told.kv_bytes == 2 * SLOTS * 4096 * 512
    assert resolve_memory(StackSettings(worker_options={"max_num_seqs": 1}), [SMALL]).kv_bytes == LEAST_KV


def test_the_largest_model_counts_and_caches_have_a_bound() -> None:
    told = resolve_memory(StackSettings(), [SMALL, LARGE])
    assert told.arena_bytes == 2 * 900 * MIB + ROOM
    assert told.kv_bytes == MOST_KV


def test_what_is_said_stays() -> None:
    told = resolve_memory(StackSettings(arena_bytes=7 * MIB, kv_bytes=3 * MIB), [SMALL])
    assert (told.arena_bytes, told.kv_bytes) == (7 * MIB, 3 * MIB)


def test_a_model_that_is_too_large_for_what_is_said_is_refused_with_the_number_to_set() -> None:
    with pytest.raises(BadSettings, match=f"model 'large' takes .* set --arena-bytes {900 * MIB} or more"):
        resolve_memory(StackSettings(arena_bytes=MIB), [SMALL, LARGE])


def test_requests_at_once_are_those_of_a_worker_of_which_nothing_is_said() -> None:
    assert WorkerSettings().max_num_seqs == SLOTS


def test_a_degree_that_does_not_divide_is_refused() -> None:
    with pytest.raises(BadSettings, match="tensor_parallel_size is 3"):
        measure_models(replace(settings(tiny_checkpoint("qwen2")), tensor_parallel_size=3))


def test_workers_stand_for_gpus_in_order() -> None:
    placement = place_workers(StackSettings(topology="cluster-b", workers=10))
    assert placement is not None
    assert placement.gpus[:2] == ("b0/0", "b0/1")
    assert placement.gpus[-1] == "b1/1"
    assert placement.hosts == ("b0", "b1")


def test_without_a_number_of_workers_there_are_no_more_than_gpus(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "hosts: [{name: a, memory: 1 GiB, nic: 1 Gbps, disk: 1 GB/s, gpus: [{memory: 1 GiB, host-link: 1 GB/s}]}]"
    )
    assert place_workers(StackSettings(topology=str(path))) == Placement(str(path), ("a/0",))
    many = place_workers(StackSettings(topology="cluster-a"))
    assert many is not None
    assert len(many.gpus) == min(32, count_workers(StackSettings()))


def test_a_file_is_named_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab.yaml").write_text(
        "hosts: [{name: a, memory: 1 GiB, nic: 1 Gbps, disk: 1 GB/s, gpus: [{memory: 1 GiB, host-link: 1 GB/s}]}]"
    )
    monkeypatch.chdir(tmp_path)
    placement = place_workers(StackSettings(topology="lab.yaml"))
    assert placement is not None
    assert placement.topology == str(tmp_path / "lab.yaml")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            StackSettings(topology="cluster-b", workers=17),
            "topology cluster-b has 16 GPUs for 17 workers; lower --work",
        ),
        (StackSettings(topology="cluster-z"), "topology: there is no topology 'cluster-z'"),
        (StackSettings(topology="/none/lab.yaml"), "topology: /none/lab.yaml: No such file or directory"),
        (StackSettings(shaped=True), "shaped: links are limited to the rates of a topology; give --topology"),
        (StackSettings(topology="cluster-b", shaped=True, link_rate=1e8), "shaped and link-rate"),
    ],
)
def test_what_cannot_work_is_refused(settings: StackSettings, said: str) -> None:
    with pytest.raises(BadSettings) as refused:
        place_workers(settings)
    assert said in str(refused.value)


def test_each_process_is_told_its_place_and_the_registry_and_planner_the_cluster() -> None:
    settings = StackSettings(topology="cluster-b", workers=9)
    commands = {each.name: resolve(each) for each in service_commands(settings, URLS, place_workers(settings))}
    assert [name for name in commands if name.startswith("host")] == ["host-0", "host-1"]
    assert "place: b1/0\n" in commands["worker-8"]
    assert "host-name: b1\n" in commands["worker-8"]
    assert "place: b1\n" in commands["host-1"]
    assert "topology: cluster-b\n" in commands["registry-0"]
    assert "topology: cluster-b\n" in commands["planner-0"]
    assert "topology" not in commands["router-0"]
    assert "shaping-file: ''\n" in commands["worker-0"]


def test_shaped_links_are_told_the_file_that_they_share() -> None:
    placement = Placement("cluster-b", ("b0/0",), shaping_file="/run/links")
    commands = {each.name: resolve(each) for each in service_commands(StackSettings(workers=1), URLS, placement)}
    for name in ("worker-0", "host-0"):
        assert "shaping-file: /run/links\n" in commands[name]
        assert "topology: cluster-b\n" in commands[name]
