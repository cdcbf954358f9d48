"""`livescale up` runs a whole system on this machine."""

import asyncio
import importlib
import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from livescale.services.cli.groups import GroupedCommand
from livescale.services.cli.options import PASSED_ON, WORKER_OPTIONS, settings_options
from livescale.services.cli.printer import JsonPrinter, UpPrinter, make_printer
from livescale.services.cli.systems import apply_system
from livescale.services.supervisor.checks import BadSettings, check_path
from livescale.services.supervisor.commands import worker_flags
from livescale.services.supervisor.model_settings import LoraSettings, ModelSettings
from livescale.services.supervisor.processes import ChildFailed
from livescale.services.supervisor.resources import find_files
from livescale.services.supervisor.run_files import NotOurs, announce, make_place, pointer_path
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Stack, StackFailed
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.model.latency import MADE_UP
from livescale.shared.process.telemetry import configure_logging

EPILOG = """
\b
Examples:
  livescale up --model tiny=/tmp/tiny --workers 2
  livescale up --model a=/models/a --model b=/models/b --min-instances 0 --port 0
  livescale up --model tiny=/tmp/tiny --gateways 2 --routers 2 --port 8000
  livescale up --model tiny=/tmp/tiny --topology lab.yaml --shaped
  livescale up --model tiny=/tmp/tiny --workers 16 --engine modelled --arena-bytes 67108864
  livescale up --model tiny=/tmp/tiny --workers 4 --system serverlessllm
  livescale up --model tiny=/tmp/tiny --lora mine=/tmp/adapter
  livescale up --config up.yaml

\b
In the file each model may have its own limits and bounds:
  workers: 4
  models:
    - name: a
      path: /models/a
      min-instances: 1
      max-instances: 3
      downscale-delay-s: 10
      bounds: {prefill-lo: 0.3, prefill-hi: 0.6}

A default in parentheses is that of each worker. Settings that only a service has are given by the environment, for
example LIVESCALE_MAX_WAITING=64 for the router.
"""


class NamedDirectory(click.ParamType[ModelSettings]):
    """The type of `--model`: a name, an equals sign, and a directory or hub id."""

    name = "NAME=DIR"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> ModelSettings:
        if isinstance(value, ModelSettings):
            return value  # from the configuration file
        name, equals, path = str(value).partition("=")
        if not (name and equals and path):
            self.fail(f"{value!r} is not NAME=DIR; write for example tiny=/tmp/tiny", param, ctx)
        try:
            return msgspec.convert({"name": name, "path": path}, ModelSettings)
        except msgspec.ValidationError:
            self.fail(f"{name!r} is not a valid name for a model: use letters, digits and . _ / -", param, ctx)


class NamedAdapter(click.ParamType[LoraSettings]):
    """The type of `--lora`: a name, an equals sign, and a directory."""

    name = "NAME=DIR"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> LoraSettings:
        if isinstance(value, LoraSettings):
            return value  # from the configuration file
        model = NamedDirectory().convert(value, param, ctx)
        return LoraSettings(name=model.name, path=model.path)


# Every option of a system is in one of them; those of workers that are passed on come last.
OWN_GROUPS = {
    "Models": (
        *(
            "models",
            "loras",
            "dtype",
            "kv_cache_dtype",
            "layout",
            "max_model_len",
            "tool_call_parser",
            "reasoning_parser",
        ),
        "tensor_parallel_size",
        *("min_instances", "max_instances", "fixed_share", "downscale_delay_s"),
    ),
    "Clients": ("host", "port", "gateways", "api_key", "api_keys", "allowed_origins"),
    "Processes": ("workers", "device", "routers", "start_timeout_s", "kill_hung_s", "system_bind"),
    "Memory of workers": ("arena_bytes", "kv_bytes", "host_kv_bytes"),
    "Batches": (),
    "Prefix caching": ("enable_prefix_caching",),
    "Scaling": (
        *("scaling", "live", "live_every_hop", "live_when", "ttft_slo", "switch_kv"),
        *("plan_policy", "group_setup_s", "keep_parameters"),
    ),
    "Host caches": ("host_cache", "host_cache_ttl"),
    "Routing and roles": (
        *("routing", "disaggregation", "tbt_slo", "prefill_share", "decode_scaling", "pre_scale_decode"),
        "kv_transfer",
    ),
    "Links": ("transport", "share_memory", "link_rate", "topology", "shaped"),
    "Emulated GPUs": ("engine", "engine_profile", "engine_speed"),
    "Bus": ("nats_url", "nats_login", "nats_creds", "nats_nkey", "nats_ca", "nats_cert", "nats_key", "namespace"),
    "Logs and configuration": ("log_level", "log_format", "config", "system", "print_config"),
}
GROUPS = {
    title: (*names, *(field.name for field in WORKER_OPTIONS.get(title, ()))) for title, names in OWN_GROUPS.items()
}


@click.command(cls=GroupedCommand, groups=GROUPS, epilog=EPILOG)
@settings_options(StackSettings, PASSED_ON, {"system": apply_system}, models=NamedDirectory(), loras=NamedAdapter())
def up(settings: StackSettings) -> None:
    """Serve models on this machine until Ctrl-C.

    This starts a NATS server, every service and the workers. Each model starts with its minimum of instances; the
    other workers are spare. When all is ready, one line of JSON is printed on stdout; logs go to stderr.
    """
    printer = make_printer(settings.log_format)
    try:
        check_all(settings)
        run_system(settings, printer)
    except click.ClickException as error:
        if not isinstance(printer, JsonPrinter):
            raise
        printer.failed(error.format_message())
        raise SystemExit(error.exit_code) from None


def check_all(settings: StackSettings) -> None:
    """Check what can be checked before anything is started. Raises ClickException."""
    if not settings.models:
        raise click.UsageError("no model to serve: give --model NAME=DIR, or models in a --config file")
    check_keys(settings)
    check_workers(settings)
    for model in settings.models:
        check_checkpoint(model)
    check_place()


def run_system(settings: StackSettings, printer: UpPrinter) -> None:
    """Run the system until Ctrl-C. Raises ClickException."""
    configure_logging("up", "up", settings.log_level, settings.log_format)
    try:
        asyncio.run(serve(settings, printer))
    except BadSettings as error:
        raise click.UsageError(str(error)) from None
    except (ChildFailed, StackFailed) as error:
        raise click.ClickException(str(error)) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        printer.progress("stopped")


def check_keys(settings: StackSettings) -> None:
    """Refuse keys that the gateways would refuse. Raises UsageError, which never shows a key."""
    # By name, as `livescale run` knows the services.
    keys = importlib.import_module("livescale.services.gateway.access")
    try:
        keys.read_keys(settings.api_key, settings.api_keys)
    except keys.BadKeys as error:
        raise click.UsageError(str(error)) from None


def check_workers(settings: StackSettings) -> None:
    """Refuse settings that the workers would refuse. Raises UsageError."""
    worker_settings = importlib.import_module("livescale.services.worker.settings").WorkerSettings
    try:
        worker_settings(**worker_flags(settings))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def check_place() -> None:
    """Make the directory of the note by which other commands find the system. Raises ClickException."""
    try:
        make_place(pointer_path())
    except NotOurs as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error}: name another directory by LIVESCALE_STATE_DIR") from None


async def serve(settings: StackSettings, printer: UpPrinter) -> None:
    """Serve until Ctrl-C or SIGTERM cancel this task. Raises ChildFailed when an essential process is given up."""
    cancel_on_signals()
    if settings.engine == "modelled":
        printer.progress(MADE_UP)
    async with Stack(settings, progress=printer.progress, echo=printer.line, ended=printer.ended) as stack:
        with announce(pointer_path(), url=stack.url, nats_url=stack.nats_url, namespace=settings.namespace):
            told = {"url": stack.url, "urls": list(stack.urls.values()), "nats_url": stack.nats_url}
            click.echo(ready_line(settings, {**told, "memory_bytes": stack.memory_bytes()}))
            raise await stack.supervisor.failed()


def ready_line(settings: StackSettings, told: Mapping[str, object]) -> str:
    """The line that says that all is ready: what is `told`, which system is compared with, and what is not real."""
    named = {"system": settings.system} if settings.system else {}
    warned = {} if settings.engine == "torch" else {"warning": MADE_UP}
    return json.dumps({"ready": True, **told, **named, **warned})


def cancel_on_signals() -> None:
    """The first signal cancels this task; a second one, while all is being stopped, ends the process at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel)


def check_checkpoint(model: ModelSettings) -> None:
    """Refuse a checkpoint that gateways or hosts would refuse.

    It checks the configuration, tokenizer and chat template, and the tensors that the files name. For a hub id
    everything except the tensors is fetched and checked. Raises UsageError.
    """
    # By name, as `livescale run` knows the services.
    text = importlib.import_module("livescale.services.gateway.checkpoint_reading")
    files = importlib.import_module("livescale.services.host.find_parameters")
    try:
        check_path(model)
        directory = find_files(model)
        config = load_model_config(directory)
        if Path(model.path).is_dir():
            files.find_parameters(directory, config)
        text.load_checkpoint_text(directory, time.time)
    except BadSettings as error:
        raise click.UsageError(str(error)) from None
    except (ValueError, text.BadCheckpoint) as error:
        raise click.UsageError(f"model {model.name!r}: {error}") from None
