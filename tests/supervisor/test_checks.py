"""What is refused before anything starts, and what a model is registered with."""

import os
import socket
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from livescale.services.supervisor import checks
from livescale.services.supervisor.checks import (
    BadSettings,
    check_devices,
    check_live,
    check_memory,
    check_models,
    check_system_ports,
    count_workers,
    find_ports,
    make_spec,
    resolve_form,
    worker_device,
)
from livescale.services.supervisor.model_settings import Bounds, ModelSettings
from livescale.services.supervisor.ports import outgoing_ports
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.messages.model_spec import ScalingBounds

# No test listens here but those below, so that a port and the one before it are free.
OWN_HOST = "127.0.0.77"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


def test_there_is_a_worker_a_core_and_at_least_two() -> None:
    assert count_workers(StackSettings()) == max(2, os.cpu_count() or 1)
    assert count_workers(StackSettings(workers=1)) == 1


@pytest.mark.parametrize(
    ("device", "workers", "gpus", "count", "taken"),
    [
        ("auto", 0, 0, None, "cpu"),
        ("auto", 0, 1, None, "cpu"),
        ("auto", 0, 8, 8, "cuda:1"),
        ("auto", 2, 8, 2, "cuda:1"),
        ("auto", 3, 2, 3, "cpu"),
        ("cpu", 2, 8, 2, "cpu"),
        ("cuda", 0, 1, 1, "cuda:1"),
        ("cuda", 2, 2, 2, "cuda:1"),
    ],
)
def test_workers_have_a_gpu_each_or_all_compute_on_the_cpu(
    device: Literal["auto", "cpu", "cuda"],
    workers: int,
    gpus: int,
    count: int | None,
    taken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "count_gpus", lambda: gpus)
    settings = StackSettings(device=device, workers=workers)
    check_devices(settings)
    assert worker_device(settings, 1) == taken
    assert count_workers(settings) == (count or max(2, os.cpu_count() or 1))


@pytest.mark.parametrize(("workers", "gpus"), [(0, 0), (2, 0), (2, 1)])
def test_too_few_gpus_are_refused_where_they_are_asked_for(
    workers: int, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "count_gpus", lambda: gpus)
    with pytest.raises(BadSettings, match=f"{workers or 1} workers need a GPU each and CUDA shows {gpus}"):
        check_devices(StackSettings(device="cuda", workers=workers))


def test_workers_on_gpus_keep_no_kv_in_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "count_gpus", lambda: 8)
    check_devices(StackSettings(device="cpu", kv_cache_dtype="fp8"))
    model = ModelSettings(name="m", path="/m", kv_cache_dtype="fp8")
    for settings in (StackSettings(device="cuda", kv_cache_dtype="fp8"), StackSettings(device="cuda", models=(model,))):
        with pytest.raises(BadSettings, match="kv_cache_dtype: workers on GPUs keep no KV in fp8; choose auto"):
            check_devices(settings)


def test_sockets_do_not_reach_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "count_gpus", lambda: 8)
    assert worker_device(StackSettings(transport="socket"), 0) == "cpu"
    with pytest.raises(BadSettings, match="sockets do not reach a GPU's memory; choose --transport ucx"):
        check_devices(StackSettings(device="cuda", transport="socket"))


def test_modelled_engines_need_no_gpu_a_latency_that_exists_and_no_memory_for_kv(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "count_gpus", lambda: 8)
    modelled = StackSettings(engine="modelled", workers=2, arena_bytes=1 << 20, kv_bytes=1 << 40)
    check_devices(modelled)
    check_memory(modelled, "MemAvailable: 8000000 kB\n")
    assert worker_device(modelled, 1) == "cpu"
    with pytest.raises(BadSettings, match="a modelled engine does not run on a GPU; leave out --device cuda"):
        check_devices(replace(modelled, device="cuda"))
    with pytest.raises(BadSettings, match=r"^engine-profile: there is no 'llama9'"):
        check_devices(replace(modelled, engine_profile="llama9"))


def test_parameters_on_gpus_take_no_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "count_gpus", lambda: 2)
    check_memory(StackSettings(workers=2, arena_bytes=1 << 40), "MemAvailable: 8000000 kB\n")


def test_pipelines_need_a_plan_that_makes_some() -> None:
    check_live(StackSettings(live="pipeline"))
    check_live(StackSettings(live="zigzag", plan_policy="tree"))
    with pytest.raises(BadSettings, match=r"plan-policy is tree: .* choose --plan-policy binomial"):
        check_live(StackSettings(live="pipeline", plan_policy="tree"))


def test_models_that_exist_are_accepted(checkpoint: str) -> None:
    check_models(StackSettings(models=(ModelSettings(name="a", path=checkpoint),), workers=1))


def test_a_hub_id_is_left_to_the_host() -> None:
    check_models(StackSettings(models=(ModelSettings(name="a", path="Qwen/Qwen2.5-0.5B-Instruct"),)))


@pytest.mark.parametrize("path", ["nowhere", "./no/where", "/no/where", "a/b/c", "../b", "~/b"])
def test_a_missing_directory_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSettings, match="there is no directory"):
        check_models(StackSettings(models=(ModelSettings(name="a", path=path),)))


def test_a_missing_directory_beside_others_is_no_hub_id(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(checkpoint).parent)
    with pytest.raises(BadSettings, match="there is no directory"):
        check_models(StackSettings(models=(ModelSettings(name="a", path=f"{Path(checkpoint).name}/small"),)))


def test_a_file_is_no_checkpoint(checkpoint: str) -> None:
    with pytest.raises(BadSettings, match="there is no directory"):
        check_models(StackSettings(models=(ModelSettings(name="a", path=f"{checkpoint}/config.json"),)))


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"no config\.json"):
        check_models(StackSettings(models=(ModelSettings(name="a", path=str(tmp_path)),)))


def test_a_path_that_cannot_be_looked_at_is_refused_with_the_reason() -> None:
    path = "/" + "x" * 300  # as for a directory of another user, but for root, too
    with pytest.raises(BadSettings, match=r"x cannot be read \(File name too long\); give a directory that"):
        check_models(StackSettings(models=(ModelSettings(name="a", path=path),)))


def test_a_name_given_twice_is_refused(checkpoint: str) -> None:
    model = ModelSettings(name="a", path=checkpoint)
    with pytest.raises(BadSettings, match="'a' is given twice"):
        check_models(StackSettings(models=(model, model)))


def test_more_instances_than_workers_are_refused(checkpoint: str) -> None:
    models = tuple(ModelSettings(name=name, path=checkpoint) for name in "abc")
    with pytest.raises(BadSettings, match="keep instances of 3 workers and there are 2 workers"):
        check_models(StackSettings(models=models, workers=2))
    check_models(StackSettings(models=models, workers=2, min_instances=0))
    with pytest.raises(BadSettings, match="keep instances of 3 workers and there are 2 workers; raise --workers"):
        check_models(StackSettings(models=models[:1], workers=2, min_instances=3))


def test_bounds_the_wrong_way_round_are_refused(checkpoint: str) -> None:
    upside_down = ModelSettings(name="a", path=checkpoint, min_instances=2, max_instances=1)
    with pytest.raises(BadSettings, match="min-instances 2 is above max-instances 1"):
        check_models(StackSettings(models=(upside_down,)))
    crossed = ModelSettings(name="a", path=checkpoint, bounds=Bounds(prefill_lo=0.9))
    with pytest.raises(BadSettings, match=r"bounds: prefill-lo 0\.9 is above prefill-hi 0\.7"):
        check_models(StackSettings(models=(crossed,)))


def test_more_memory_than_is_free_is_refused() -> None:
    settings = StackSettings(workers=3, arena_bytes=1 << 30, kv_bytes=1 << 30)
    with pytest.raises(BadSettings, match=r"3 workers take 6\.4 GB at their start, and 4\.1 GB are free"):
        check_memory(settings, "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n")
    check_memory(settings, "MemAvailable: 7000000 kB\n")
    own = replace(settings, models=(ModelSettings(name="a", path="a", dtype="float32"),))
    for copied in (replace(settings, layout="plain"), replace(settings, dtype="float32"), own):
        with pytest.raises(BadSettings, match=r"3 workers take 9\.7 GB"):
            check_memory(copied, "MemAvailable: 7000000 kB\n")
    check_memory(settings, "")


def test_a_port_in_use_is_refused_and_a_free_one_accepted() -> None:
    with socket.create_server((OWN_HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BadSettings, match=f"cannot listen on {OWN_HOST}:{port}: Address already in use"):
            find_ports(StackSettings(host=OWN_HOST, port=port))
    assert find_ports(StackSettings(host=OWN_HOST, port=port)) == [port]


def test_system_ports_in_use_are_refused() -> None:
    with socket.create_server((OWN_HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BadSettings, match=f"system-bind: cannot listen on {OWN_HOST}:{port}: "):
            check_system_ports(f"{OWN_HOST}:{port - 1}", 2)
    with pytest.raises(BadSettings, match=r"system-bind: cannot listen on 192\.0\.2\.1:0"):
        check_system_ports("192.0.2.1:0", 5)
    check_system_ports("127.0.0.1:0", 5)


def test_gateways_take_the_port_and_those_after_it_or_free_ones() -> None:
    [first, second] = find_ports(StackSettings(host=OWN_HOST, port=0, gateways=2))
    assert first != second
    assert not {first, second} & set(outgoing_ports())  # while a gateway starts again, nobody else gets its port
    taken = rf"cannot listen on {OWN_HOST}:{first}: "
    with socket.create_server((OWN_HOST, first)), pytest.raises(BadSettings, match=taken):
        find_ports(StackSettings(host=OWN_HOST, port=first - 1, gateways=2))
    with pytest.raises(BadSettings, match="3 gateways from port 65534 on go beyond 65535"):
        find_ports(StackSettings(host=OWN_HOST, port=65534, gateways=3))


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BadSettings, match=r"cannot listen on 192\.0\.2\.1:0"):
        find_ports(StackSettings(host="192.0.2.1", port=0))


def test_a_model_takes_what_it_leaves_out_from_the_flags(checkpoint: str) -> None:
    settings = StackSettings(min_instances=0, max_instances=3, max_model_len=512, workers=4)
    spec = make_spec(ModelSettings(name="a", path=checkpoint), resolve_form(settings, "bfloat16", "plain"))
    assert (spec.dtype, spec.min_instances, spec.max_instances) == ("bfloat16", 0, 3)
    assert spec.max_model_len == 512
    own = ModelSettings(
        name="a", path=checkpoint, dtype="float32", min_instances=1, max_instances=2, bounds=Bounds(decode_lo=0.5)
    )
    spec = make_spec(own, resolve_form(settings, "bfloat16", "plain"))
    assert (spec.dtype, spec.min_instances, spec.max_instances) == ("float32", 1, 2)
    assert spec.bounds == ScalingBounds(decode_lo=0.5)


def test_instances_of_a_fixed_share_of_workers_are_as_many_of_each_model() -> None:
    def bounds(**settings: float) -> list[tuple[int, int]]:
        models = tuple(ModelSettings(name=name, path=name) for name in ("a", "b"))
        stack = replace(PLAIN, **{"workers": 9, "models": models, **settings})
        return [(spec.min_instances, spec.max_instances) for spec in (make_spec(one, stack) for one in models)]

    assert bounds() == [(1, 9)] * 2
    assert bounds(fixed_share=1.0) == [(4, 4)] * 2
    assert bounds(fixed_share=0.5) == [(2, 2)] * 2
    assert bounds(fixed_share=0.01) == [(1, 1)] * 2
    assert bounds(fixed_share=1.0, tensor_parallel_size=2) == [(2, 2)] * 2
    assert bounds(fixed_share=1.0, min_instances=0) == [(0, 4)] * 2
    assert bounds(fixed_share=1.0, min_instances=0, max_instances=7) == [(0, 7)] * 2


def test_an_idle_instance_is_given_back_as_its_model_says_else_as_the_system_does() -> None:
    settings = replace(PLAIN, downscale_delay_s=0.5)
    assert make_spec(ModelSettings(name="a", path="a"), settings).downscale_delay_s == 0.5
    assert make_spec(ModelSettings(name="a", path="a", downscale_delay_s=0.0), settings).downscale_delay_s == 0.0
    assert make_spec(ModelSettings(name="a", path="a"), PLAIN).downscale_delay_s == 5.0


def test_all_workers_may_serve_a_model_without_a_bound(checkpoint: str) -> None:
    spec = make_spec(
        ModelSettings(name="a", path=checkpoint), resolve_form(StackSettings(workers=7), "float32", "plain")
    )
    assert spec.max_instances == 7


PLAIN = resolve_form(StackSettings(), "float32", "plain")


def test_a_directory_is_registered_as_an_absolute_path(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(checkpoint).parent)
    model = ModelSettings(name="a", path=Path(checkpoint).name)
    assert make_spec(model, PLAIN).path == checkpoint
    hub = ModelSettings(name="a", path="Qwen/Qwen2.5-0.5B")
    assert make_spec(hub, PLAIN).path == "Qwen/Qwen2.5-0.5B"


def test_default_bounds_are_those_of_the_message() -> None:
    ours, theirs = Bounds(), ScalingBounds()
    assert [getattr(ours, name) for name in ours.__struct_fields__] == [
        getattr(theirs, name) for name in theirs.__struct_fields__
    ]
