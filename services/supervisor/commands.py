"""The command lines of a whole system. The supervisor knows nothing else of the services."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from livescale.services.supervisor.checks import count_workers, spec_bounds, worker_device
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.processes import ProcessCommand
from livescale.services.supervisor.resources import Placement
from livescale.services.supervisor.settings import WORKER_FLAGS, StackSettings
from livescale.shared.bus.identity import NatsFiles
from livescale.shared.messages.membership import ServiceName
from livescale.shared.process.system_port import join_address, split_address

CONTROL: tuple[ServiceName, ...] = ("registry", "router", "planner", "monitor")

CLI = (sys.executable, "-m", "livescale.services.cli.main")
NATS = "nats"

# The server wakes for each token. With as many threads as cores some of them spin at each, for more messages, and take
# a core from the process that waits for the message. With one thread a message costs a fifth less, and comes sooner.
NATS_CORES_SHARE = 4  # it gets one of so many cores, but one at least

# Ctrl-C should not wait longer for streams; below the supervisor's own grace.
GATEWAY_GRACE_SECONDS = 5

# Engines must not keep the control plane waiting. With 10, nearly all that wakes for a token takes the processor from
# the step that follows, though another one may be free.
WORKER_NICE = 5

# One thread a worker, and memory that was touched once stays mapped: huge pages, no trimming. A fixed threshold for
# mmap must go with it, because setting the trim threshold alone would freeze it at 128 KiB.
WORKER_ENV = {
    "OMP_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=4294967296"
    ":glibc.malloc.mmap_threshold=1073741824",
}

# A configuration file that the environment names is the whole system's, not a single service's; and only gateways
# need to know the keys of clients.
OWN_NAMES = ("CONFIG", "API_KEY", "API_KEYS", "SYSTEM_BIND", "SYSTEM_FILE")
OWN_ENV = {f"LIVESCALE_{name}": "" for name in OWN_NAMES}

# What processes import before they are forked. Workers have their own, as their memory is handled otherwise; links are
# not among it, as UCX starts threads.
COMMON: tuple[str, ...] = ("livescale.services.cli.run",)
SERVICE_IMPORTS: tuple[str, ...] = (
    *COMMON,
    *(f"livescale.services.{service}.main" for service in (*CONTROL, "host", "gateway")),
)
WORKER_IMPORTS: tuple[str, ...] = (*COMMON, "livescale.services.worker.main")
ENGINE_IMPORTS: tuple[str, ...] = (*WORKER_IMPORTS, "livescale.services.worker.engine.runner")

Flags = Mapping[str, str | float]


def service_argv(service: ServiceName, settings: Flags) -> tuple[str, ...]:
    """The command line of one service; settings are given by field name."""
    flags = [flag(name.replace("_", "-"), value) for name, value in settings.items()]
    return (*CLI, "run", service, *flags)


def flag(name: str, value: str | float) -> str:
    match value:
        case bool():
            return f"--{name}" if value else f"--no-{name}"
        case _:
            return f"--{name}={value}"


def nats_command(program: str, config: Path, environment: Mapping[str, str], cores: int) -> ProcessCommand:
    """The NATS server of a machine with so many cores. GOMAXPROCS of the `environment` goes before what is chosen."""
    threads = environment.get("GOMAXPROCS") or str(max(1, cores // NATS_CORES_SHARE))
    return ProcessCommand(NATS, (program, "--config", str(config)), env={"GOMAXPROCS": threads}, quiet=True)


def service_commands(
    settings: StackSettings, nats_urls: Mapping[str, str], placement: Placement | None = None
) -> list[ProcessCommand]:
    """Every process of a system on this machine but the gateways. `nats_urls` has the bus's url by service."""
    bus = bus_flags(settings)
    link: Flags = {
        "transport": settings.transport,
        "share_memory": settings.share_memory,
        "link_rate": settings.link_rate,
    }

    def command(service: ServiceName, flags: Flags = MappingProxyType({}), index: int = 0) -> ProcessCommand:
        name = f"{service}-{index}"
        env = {**OWN_ENV, **bus_env(settings, nats_urls[service])}
        return ProcessCommand(
            name, service_argv(service, {"id": name, **bus, **flags}), env=env, imports=SERVICE_IMPORTS
        )

    def worker(index: int, place: Flags) -> ProcessCommand:
        device: Flags = {"device": worker_device(settings, index)}
        own: Flags = {**device, **engine_flags(settings), **worker_flags(settings)}
        plain = command("worker", {**own, **link, **place}, index)
        imports = ENGINE_IMPORTS if settings.engine == "torch" else WORKER_IMPORTS
        env = {**plain.env, **WORKER_ENV}
        return replace(plain, env=env, nice=WORKER_NICE, essential=False, imports=imports)

    workers, hosts = places(settings, placement)
    return [
        *(command(service, control_flags(service, settings, placement)) for service in CONTROL),
        *(
            command("router", control_flags("router", settings, placement), index)
            for index in range(1, settings.routers)
        ),
        *(worker(index, place) for index, place in enumerate(workers)),
        *(command("host", {**link, **place}, index) for index, place in enumerate(hosts)),
    ]


def worker_flags(settings: StackSettings) -> Flags:
    """The settings that all workers get alike. One that is left out is not passed, as workers read the environment."""
    flags = {name: getattr(settings, name) for name in WORKER_FLAGS}
    told = {name: value for name, value in flags.items() if value is not None}
    return {**told, **settings.worker_options}


def engine_flags(settings: StackSettings) -> Flags:
    """The engine of all workers. It is always passed, as workers would else take it from the environment."""
    if settings.engine == "torch":
        return {"engine": settings.engine}
    return {
        "engine": settings.engine,
        "engine_profile": settings.engine_profile,
        "engine_speed": settings.engine_speed,
    }


def control_flags(service: ServiceName, settings: StackSettings, placement: Placement | None) -> Flags:
    """What only registry, planner and routers are told: the topology, rates of links, how to plan, which copies hosts
    keep, models' defaults, how to route, whether to disaggregate."""
    cluster: Flags = {"topology": placement.topology} if placement else {}
    share: Flags = {} if settings.prefill_share is None else {"prefill_share": settings.prefill_share}
    match service:
        case "registry":
            caches: Flags = {"host_cache": settings.host_cache, "host_cache_ttl": settings.host_cache_ttl}
            return {**cluster, **caches, **spec_flags(settings)}
        case "router":
            return {
                "routing": settings.routing,
                "disaggregation": settings.disaggregation,
                "ttft_slo": settings.ttft_slo,
                "tbt_slo": settings.tbt_slo,
            }
        case "monitor":
            return {
                "scaling": settings.scaling,
                "disaggregation": settings.disaggregation,
                **share,
                "pre_scale_decode": settings.pre_scale_decode,
            }
        case "planner":
            return {
                "link_rate": settings.link_rate,
                "plan_policy": settings.plan_policy,
                "group_setup_s": settings.group_setup_s,
                "live": settings.live,
                "live_every_hop": settings.live_every_hop,
                "live_when": settings.live_when,
                "ttft_slo": settings.ttft_slo,
                "tbt_slo": settings.tbt_slo,
                "disaggregation": settings.disaggregation,
                **share,
                "decode_scaling": settings.decode_scaling,
                **cluster,
            }
        case _:
            return {}


def spec_flags(settings: StackSettings) -> Flags:
    """The defaults of models that are registered later. They are those of the models that are named at the start."""
    lowest, highest = spec_bounds(ModelSettings(name="later", path="later"), settings)
    flags = {
        "dtype": settings.dtype,
        "layout": settings.layout,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "min_instances": lowest,
        "max_instances": max(highest, lowest),
        "downscale_delay_s": settings.downscale_delay_s,
        "max_model_len": settings.max_model_len,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "tool_call_parser": settings.tool_call_parser,
        "reasoning_parser": settings.reasoning_parser,
    }
    return {name: value for name, value in flags.items() if value not in ("auto", None)}


def places(settings: StackSettings, placement: Placement | None) -> tuple[list[Flags], list[Flags]]:
    """What each worker and each host is told of its place. Without a topology there is one host, this machine."""
    if placement is None:
        return [{} for _ in range(count_workers(settings))], [{}]
    return [placement.flags(gpu) for gpu in placement.gpus], [placement.flags(host) for host in placement.hosts]


def gateway_commands(
    settings: StackSettings, nats_urls: Mapping[str, str], ports: Sequence[int], run_dir: Path
) -> list[ProcessCommand]:
    """One gateway for each port. It writes a file of its name to `run_dir` once it listens."""
    # Keys are passed by the environment, as every user can read command lines.
    keys = {
        "LIVESCALE_API_KEY": " ".join(settings.api_key),
        "LIVESCALE_API_KEYS": str(Path(settings.api_keys).resolve()) if settings.api_keys else "",
        "LIVESCALE_ALLOWED_ORIGINS": " ".join(settings.allowed_origins),
    }
    env = {**OWN_ENV, **bus_env(settings, nats_urls["gateway"]), **keys}

    def command(name: str, port: int) -> ProcessCommand:
        own: Flags = {
            "host": settings.host,
            "port": port,
            "ready_file": str(ready_file(run_dir, name)),
            "shutdown_grace_s": GATEWAY_GRACE_SECONDS,
        }
        argv = service_argv("gateway", {"id": name, **bus_flags(settings), **own})
        return ProcessCommand(name, argv, env=env, imports=SERVICE_IMPORTS)

    return [command(f"gateway-{index}", port) for index, port in enumerate(ports)]


def bind_system_ports(commands: Sequence[ProcessCommand], system_bind: str) -> list[ProcessCommand]:
    """The commands with a system port for each: the first gets that of `system_bind`, the others those after it; 0 has
    each take a free one."""
    host, first = split_address(system_bind)
    ports = (first and first + index for index in range(len(commands)))
    return [
        replace(each, argv=(*each.argv, flag("system-bind", join_address(host, port))))
        for each, port in zip(commands, ports, strict=True)
    ]


def ready_file(run_dir: Path, gateway: str) -> Path:
    return run_dir / f"{gateway}.json"


def bus_flags(settings: StackSettings) -> Flags:
    return {"namespace": settings.namespace, "log_level": settings.log_level, "log_format": settings.log_format}


def bus_env(settings: StackSettings, nats_url: str) -> Mapping[str, str]:
    """How a process reaches the bus, by the environment: the url holds a password."""
    return {"LIVESCALE_NATS_URL": nats_url, **bus_files(settings).environment()}


def bus_files(settings: StackSettings) -> NatsFiles:
    """Credential files for a server that is named. The system's own server asks for passwords alone."""
    return NatsFiles.of(settings) if settings.nats_url else NatsFiles()
