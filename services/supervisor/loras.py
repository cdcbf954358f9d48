"""The adapters that a whole system starts with."""

from collections.abc import Sequence
from pathlib import Path

from livescale.services.supervisor.checks import BadSettings
from livescale.services.supervisor.policy import failed_models
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Snapshot
from livescale.shared.model.declaration.adapter import ADAPTER_CONFIG


def adapter_specs(settings: StackSettings) -> list[ModelSpec]:
    """The adapters as they are registered. Raises BadSettings for one that is not there, or whose base is not."""
    names = [model.name for model in settings.models]
    specs: list[ModelSpec] = []
    for lora in settings.loras:
        base, path = lora.base or (names[0] if len(names) == 1 else None), Path(lora.path)
        if base not in names:
            raise BadSettings(f"lora {lora.name!r}: name its base in a --config file; models are {', '.join(names)}")
        if not (path / ADAPTER_CONFIG).is_file():
            raise BadSettings(f"lora {lora.name!r}: {path} has no {ADAPTER_CONFIG}, so it is no adapter of peft's")
        if lora.name in (*names, *(spec.name for spec in specs)):
            raise BadSettings(f"lora {lora.name!r} has the name of another model; give it a name of its own")
        specs.append(ModelSpec(name=lora.name, path=str(path.resolve()), base=base))
    return specs


def unread_adapters(snapshot: Snapshot, adapters: Sequence[ModelSpec]) -> list[str]:
    """The adapters that no host has yet, and why, where one cannot be read."""
    failed = failed_models(snapshot, {adapter.name for adapter in adapters})
    ready = {entry.spec.name for entry in snapshot.models if entry.state == "ready"}
    return failed or [adapter.name for adapter in adapters if adapter.name not in ready]
