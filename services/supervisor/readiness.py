"""What a starting system still waits for."""

from collections.abc import Container, Iterable

from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.messages.registry import Snapshot


def missing_members(snapshot: Snapshot, ids: Iterable[str]) -> list[str]:
    """The processes that have not joined, in the order asked for."""
    alive = {member.id for member in snapshot.members if member.lease == "alive"}
    return [each for each in ids if each not in alive]


def missing_instances(snapshot: Snapshot, specs: Iterable[ModelSpec]) -> list[str]:
    """One line for each model that is not in memory or serves with fewer instances than its minimum."""
    states = {model.spec.name: model.state for model in snapshot.models}
    missing = []
    for spec in specs:
        serving = len(
            {worker.instance for worker in snapshot.workers if worker.model == spec.name and worker.state == "serving"}
        )
        if states.get(spec.name) != "ready":
            missing.append(f"model {spec.name} ({states.get(spec.name, 'unknown')})")
        elif serving < spec.min_instances:
            missing.append(f"model {spec.name} ({serving} of {spec.min_instances} instances)")
    return missing


def failed_models(snapshot: Snapshot, names: Container[str]) -> list[str]:
    """One line for each of these models that could not be read."""
    return [
        f"model {model.spec.name}: {model.error}"
        for model in snapshot.models
        if model.state == "failed" and model.spec.name in names
    ]
