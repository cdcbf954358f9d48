"""The command lines of a whole system. They are the only thing the supervisor knows of the services."""

import sys
from pathlib import Path

from services.supervisor.checks import count_workers
from services.supervisor.processes import Command
from services.supervisor.settings import StackSettings
from shared.messages.membership import ServiceName

CONTROL: tuple[ServiceName, ...] = ("registry", "router", "planner", "monitor")

# Engines must not keep the control plane waiting.
WORKER_NICE = 10

# One thread a worker, and memory that was touched once stays mapped: huge pages, no trimming. A fixed threshold for
# mmap must go with it, because setting the trim threshold alone would freeze it at 128 KiB.
WORKER_ENV = {
    "OMP_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=4294967296"
    ":glibc.malloc.mmap_threshold=1073741824",
}


def service_argv(service: ServiceName, **settings: str | float) -> tuple[str, ...]:
    """The command line of one service; settings are given by field name."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    return (sys.executable, "-m", "services.cli.main", "run", service, *flags)


def stack_commands(settings: StackSettings, nats_url: str, ready_file: Path) -> list[Command]:
    """Every process of a system on this machine, in the order to start them."""

    def command(service: ServiceName, index: int = 0, **more: str | float) -> Command:
        name = f"{service}-{index}"
        argv = service_argv(
            service,
            id=name,
            nats_url=nats_url,
            namespace=settings.namespace,
            log_level=settings.log_level,
            **more,
        )
        worker = service == "worker"
        return Command(
            name,
            argv,
            env=WORKER_ENV if worker else {"LIVESCALE_API_KEY": settings.api_key},
            nice=WORKER_NICE if worker else 0,
            essential=not worker,
        )

    link: dict[str, str | float] = {"transport": settings.transport, "link_rate": settings.link_rate}
    memory: dict[str, str | float] = {"arena_bytes": settings.arena_bytes, "kv_bytes": settings.kv_bytes}
    return [
        *(command(service) for service in CONTROL),
        *(command("worker", index, **memory, **link) for index in range(count_workers(settings))),
        command("host", **link),
        command("gateway", host=settings.host, port=settings.port, ready_file=str(ready_file)),
    ]
