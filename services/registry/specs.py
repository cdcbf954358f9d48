"""What an operator may declare of a model. Pure."""

import re
from collections.abc import Sequence

from msgspec.structs import asdict, replace

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.parameters import ModelSpec

LEAST = 0.001  # of a scaling bound: capacities are divided by it
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


def check_spec(spec: ModelSpec) -> None:
    """Raises Refusal 400 that names the first field that cannot be."""
    bounds = spec.bounds
    rules = (
        (NAME.fullmatch(spec.name) is not None, "name must be 1 to 128 of letters, digits and . _ / -"),
        (spec.path != "", "path must name a directory"),
        (spec.min_instances >= 0, "min_instances must be 0 or more"),
        (spec.max_instances >= 1, "max_instances must be 1 or more"),
        (
            spec.max_instances >= spec.min_instances,
            f"max_instances must be at least min_instances, which is {spec.min_instances}: name both",
        ),
        (LEAST <= bounds.prefill_lo <= bounds.prefill_hi, f"bounds: {LEAST} <= prefill_lo <= prefill_hi must hold"),
        (
            LEAST <= bounds.decode_lo <= bounds.decode_hi <= 1,
            f"bounds: {LEAST} <= decode_lo <= decode_hi <= 1 must hold",
        ),
        (spec.upscale_delay_s >= 0, "upscale_delay_s must be 0 or more"),
        (spec.downscale_delay_s >= 0, "downscale_delay_s must be 0 or more"),
        (spec.downscale_to_zero_delay_s >= 0, "downscale_to_zero_delay_s must be 0 or more"),
        (spec.max_model_len is None or spec.max_model_len > 0, "max_model_len must be 1 or more"),
    )
    for holds, message in rules:
        if not holds:
            raise Refusal(400, f"model {spec.name!r}: {message}")


def complete_spec(said: ModelSpec, named: Sequence[str] | None, rest: ModelSpec) -> ModelSpec:
    """What an operator `said`, where he named it; all else as in `rest`: the model as it is registered, or defaults."""
    if named is None:
        return said
    parts = {name.partition(".")[2]: getattr(said.bounds, name.partition(".")[2]) for name in named if "." in name}
    values = {name: value for name, value in asdict(said).items() if name in named}
    return replace(rest, **{"bounds": replace(rest.bounds, **parts), **values, "name": said.name})
