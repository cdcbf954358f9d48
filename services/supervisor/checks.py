"""Checks of a system's settings before anything is started, and what `auto` stands for."""

import os
from pathlib import Path

from msgspec.structs import asdict, replace

from livescale.services.supervisor.model_settings import Bounds, ModelSettings
from livescale.services.supervisor.ports import LAST_PORT, bind, free_ports
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.memory.devices import CPU, count_gpus
from livescale.shared.messages.model_spec import ModelSpec, ScalingBounds
from livescale.shared.messages.parameters import DType, Layout
from livescale.shared.model.automatic_form import FEWEST_GPUS, choose_form, has_compiled_kernels
from livescale.shared.model.latency import find_latency
from livescale.shared.process.system_port import CannotListen, join_address, listen, split_address
from livescale.shared.runtime.settings import check_plan_policy


class BadSettings(Exception):
    """Some setting cannot work. The message says which, and what to do."""


def count_workers(settings: StackSettings) -> int:
    return settings.workers or (count_gpus() if on_gpus(settings) else max(2, os.cpu_count() or 1))


def on_gpus(settings: StackSettings) -> bool:
    """Whether each worker has a GPU of its own; `auto` takes them only where there are enough, and at least two."""
    if settings.engine == "modelled":
        return False
    if settings.device == "auto":
        return settings.transport == "ucx" and count_gpus() >= max(FEWEST_GPUS, settings.workers)
    return settings.device == "cuda"


def worker_device(settings: StackSettings, index: int) -> str:
    return f"cuda:{index}" if on_gpus(settings) else CPU


def check_devices(settings: StackSettings) -> None:
    """Raises BadSettings for devices that workers cannot use: too few GPUs, a transport that does not reach their
    memory, KV in fp8 or a modelled engine on a GPU, or a missing latency profile."""
    if settings.engine == "modelled":
        check_latency(settings)
    if settings.device == "cuda" and settings.transport == "socket":
        raise BadSettings("transport: sockets do not reach a GPU's memory; choose --transport ucx, or --device cpu")
    gpus, needed = count_gpus(), max(1, settings.workers)
    if on_gpus(settings) and gpus < needed:
        raise BadSettings(
            f"device is cuda: {needed} workers need a GPU each and CUDA shows {gpus}; "
            "look at nvidia-smi, lower --workers, or choose --device cpu"
        )
    if on_gpus(settings) and "fp8" in (settings.kv_cache_dtype, *(model.kv_cache_dtype for model in settings.models)):
        raise BadSettings("kv_cache_dtype: workers on GPUs keep no KV in fp8; choose auto, or --device cpu")


def check_latency(settings: StackSettings) -> None:
    """Raises BadSettings for a modelled engine on a GPU, and for a latency profile that is not there."""
    if settings.device == "cuda":
        raise BadSettings(
            "engine: a modelled engine does not run on a GPU; leave out --device cuda or --engine modelled"
        )
    try:
        find_latency(settings.engine_profile)
    except ValueError as error:
        raise BadSettings(str(error)) from None


def check_live(settings: StackSettings) -> None:
    """Raises BadSettings where no instance would ever take requests before it is whole."""
    try:
        check_plan_policy(settings.plan_policy, settings.live)
    except ValueError as error:
        raise BadSettings(str(error)) from None


def choose_own_form(settings: StackSettings, cpuinfo: str) -> tuple[DType, Layout]:
    """What `auto` is on this machine, whose processors `cpuinfo` describes."""
    return choose_form(on_gpus=on_gpus(settings), cpuinfo=cpuinfo, compiled=has_compiled_kernels())


def resolve_form(settings: StackSettings, dtype: DType, layout: Layout) -> StackSettings:
    """The settings with these in place of `auto`, for the system and for each model."""
    return replace(
        settings,
        dtype=dtype if settings.dtype == "auto" else settings.dtype,
        layout=layout if settings.layout == "auto" else settings.layout,
        models=tuple(replace(model, dtype=dtype) if model.dtype == "auto" else model for model in settings.models),
    )


def check_models(settings: StackSettings) -> None:
    """Raises BadSettings for a model that is not there, and for what `check_instances` refuses."""
    for model in settings.models:
        check_path(model)
    check_instances(settings)


def check_instances(settings: StackSettings) -> None:
    """Raises BadSettings for a model that is named twice, has crossed bounds, or asks for more workers than there
    are."""
    names = [model.name for model in settings.models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadSettings(f"model {twice[0]!r} is given twice; give every model a name of its own")
    # First, as most instances are by default as many as there are workers for.
    needed = sum(spec_bounds(model, settings)[0] * ranks_of(model, settings) for model in settings.models)
    if needed > count_workers(settings):
        raise BadSettings(
            f"the models keep instances of {needed} workers and there are {count_workers(settings)} workers; "
            "raise --workers or lower min-instances"
        )
    for model in settings.models:
        lowest, highest = spec_bounds(model, settings)
        if lowest > highest:
            raise BadSettings(f"model {model.name!r}: min-instances {lowest} is above max-instances {highest}")
        if crossed := _crossed(model.bounds):
            raise BadSettings(f"model {model.name!r}: bounds: {crossed}; a lower one is at most its upper one")


def check_path(model: ModelSettings) -> None:
    """A hub id has the form ORG/NAME and is not a directory; anything else must be a checkpoint that exists."""
    path = Path(model.path)
    try:
        is_directory, has_config = path.is_dir(), (path / "config.json").is_file()
    except OSError as error:
        raise BadSettings(
            f"model {model.name!r}: {path} cannot be read ({error.strerror}); give a directory that this user may read"
        ) from None
    if is_directory:
        if not has_config:
            raise BadSettings(f"model {model.name!r}: {path} has no config.json, so it is no Hugging Face checkpoint")
        return
    looks_like_hub_id = model.path.count("/") == 1 and model.path[0] not in "./~" and not path.parent.exists()
    if path.exists() or not looks_like_hub_id:
        raise BadSettings(
            f"model {model.name!r}: there is no directory {model.path}; "
            "`livescale make-model DIR --family llama --size tiny` makes one to try"
        )


def check_memory(settings: StackSettings, meminfo: str) -> None:
    """Raises BadSettings if workers on CPUs with a model would take more memory than this /proc/meminfo has to give."""
    arena_bytes, kv_bytes = settings.arena_bytes or 0, (settings.kv_bytes or 0) + settings.host_kv_bytes
    # Matrices that do not come as the kernels want them are copied.
    dtypes = {settings.dtype, *(model.dtype for model in settings.models)}
    copies = arena_bytes if settings.layout == "plain" or "float32" in dtypes else 0
    computing = 0 if settings.engine == "modelled" else copies + kv_bytes
    needed = 0 if on_gpus(settings) else count_workers(settings) * (arena_bytes + computing)
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable" and needed > (available := int(value.split()[0]) * 1024):
            raise BadSettings(
                f"{count_workers(settings)} workers take {needed / 1e9:.1f} GB at their start, and "
                f"{available / 1e9:.1f} GB are free: lower --workers, --arena-bytes or --kv-bytes"
            )


def find_ports(settings: StackSettings) -> list[int]:
    """The port of each gateway, known before it starts, so that one that is started again is found where it was.

    Raises BadSettings where a gateway could not listen.
    """
    first, count = settings.port, settings.gateways
    if first + count - 1 > LAST_PORT:
        raise BadSettings(f"{count} gateways from port {first} on go beyond {LAST_PORT}; choose a lower --port")
    port = first
    try:
        if not first:
            return free_ports(settings.host, count)
        for port in range(first, first + count):
            bind(settings.host, port).close()
    except OSError as error:
        raise BadSettings(
            f"cannot listen on {settings.host}:{port}: {error.strerror}; choose another --port (0 takes a free one) or "
            "--host"
        ) from None
    return list(range(first, first + count))


def check_system_ports(system_bind: str, count: int) -> None:
    """Raises BadSettings where one of `count` processes could not listen on its system port."""
    host, first = split_address(system_bind)
    for port in range(first, first + count) if first else (0,):
        try:
            listen(join_address(host, port)).close()
        except CannotListen as error:
            raise BadSettings(str(error)) from None


def _crossed(bounds: Bounds) -> str:
    """Which lower bound is above its upper one; empty where none is."""
    values = asdict(bounds)
    for name in ("prefill", "decode", "kv"):
        lowest, highest = values[f"{name}_lo"], values[f"{name}_hi"]
        if lowest > highest:
            return f"{name}-lo {lowest:g} is above {name}-hi {highest:g}"
    return ""


def spec_bounds(model: ModelSettings, settings: StackSettings) -> tuple[int, int]:
    """The least and the most instances of a model: as its own settings say, else those of the system, else its part of
    the fixed share of workers, else whatever the workers allow."""
    room = count_workers(settings) // ranks_of(model, settings)
    least, most = 1, max(1, room)
    if settings.fixed_share is not None:
        least = most = max(1, int(settings.fixed_share * room / max(1, len(settings.models))))
    return (
        _first_said(model.min_instances, settings.min_instances, least),
        _first_said(model.max_instances, settings.max_instances, most),
    )


def _first_said(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def ranks_of(model: ModelSettings, settings: StackSettings) -> int:
    """The number of workers of an instance of this model."""
    return model.tensor_parallel_size or settings.tensor_parallel_size


def make_spec(model: ModelSettings, settings: StackSettings) -> ModelSpec:
    """The model as it is registered, by settings that have no `auto` any more.

    Directories become absolute, as the host may have another working directory.
    """
    dtype, layout = model.dtype or settings.dtype, settings.layout
    assert dtype != "auto"
    assert layout != "auto"
    lowest, highest = spec_bounds(model, settings)
    path, idle = Path(model.path), model.downscale_delay_s
    return ModelSpec(
        name=model.name,
        path=str(path.resolve()) if path.is_dir() else model.path,
        dtype=dtype,
        min_instances=lowest,
        max_instances=highest,
        bounds=ScalingBounds(
            prefill_lo=model.bounds.prefill_lo,
            prefill_hi=model.bounds.prefill_hi,
            decode_lo=model.bounds.decode_lo,
            decode_hi=model.bounds.decode_hi,
            kv_lo=model.bounds.kv_lo,
            kv_hi=model.bounds.kv_hi,
        ),
        upscale_delay_s=model.upscale_delay_s,
        downscale_delay_s=settings.downscale_delay_s if idle is None else idle,
        downscale_to_zero_delay_s=model.downscale_to_zero_delay_s,
        max_model_len=model.max_model_len or settings.max_model_len,
        tensor_parallel_size=ranks_of(model, settings),
        layout=layout,
        kv_cache_dtype=model.kv_cache_dtype or settings.kv_cache_dtype,
        priority=model.priority,
        disaggregation=model.disaggregation,
        tool_call_parser=model.tool_call_parser or settings.tool_call_parser,
        reasoning_parser=model.reasoning_parser or settings.reasoning_parser,
    )
