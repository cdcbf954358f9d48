"""The options of a whole system: its own settings, and those of workers that it passes on to all of them."""

import importlib
from itertools import chain

from msgspec import inspect
from msgspec.structs import FieldInfo, fields

from livescale.services.cli.options import flatten
from livescale.services.supervisor.settings import StackSettings


def options_of_workers() -> dict[str, list[FieldInfo]]:
    """The fields of a worker's settings that are options of a system too, by their group in its help."""
    # By name, as `livescale run` knows the services.
    found: dict[str, list[FieldInfo]] = {}
    for field in fields(importlib.import_module("livescale.services.worker.settings").WorkerSettings):
        info = inspect.type_info(field.type)
        if isinstance(info, inspect.Metadata) and info.extra is not None and "up" in info.extra:
            found.setdefault(info.extra["up"], []).append(field)
    return found


WORKER_OPTIONS = options_of_workers()
PASSED_ON = {"worker_options": list(chain(*WORKER_OPTIONS.values()))}
# All options of `livescale up`, by the names of its flags.
UpOptions = flatten(StackSettings, PASSED_ON)
