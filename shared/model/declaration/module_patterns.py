"""Which modules of a checkpoint a quantization means: by their names, their ends, or patterns. Pure."""

import re
from collections.abc import Callable, Sequence

from livescale.shared.model.declaration.config_file import CheckpointError

LONGEST_PATTERN, MOST_REPEATS = 200, 4
Module = str  # its name in the checkpoint
Finds = Callable[[Module], bool]


def is_in_a_layer(module: Module) -> bool:
    """Whether it is part of a layer: not the embedding, nor the head."""
    return module.startswith("model.layers.")


def ends_with(names: Sequence[str]) -> Finds:
    """Whether the module is part of a layer and has one of these names, after a dot."""
    return lambda module: is_in_a_layer(module) and any(module.endswith("." + name) for name in names)


def _named(names: Sequence[str]) -> Finds:
    """Whether one of the names is the module's, or that of a module that it is part of."""
    return lambda module: any(f"{module}.".startswith(f"{name}.") or module.endswith(f".{name}") for name in names)


def matched(targets: Sequence[str]) -> Finds:
    """Whether a target of compressed-tensors means the module: a name, a pattern, or the class of all of them.

    Raises CheckpointError for a pattern that is none, or that might take for ever.
    """
    patterns = [_pattern(target.removeprefix("re:")) for target in targets if target.startswith("re:")]
    names = _named([target for target in targets if not target.startswith("re:")])
    return lambda module: "Linear" in targets or names(module) or any(one.match(module) for one in patterns)


def _pattern(text: str) -> re.Pattern[str]:
    # One that repeats what repeats takes for ever on some names.
    if len(text) > LONGEST_PATTERN or len(re.findall(r"[*+{]", text)) > MOST_REPEATS or re.search(r"\)[*+{]", text):
        raise CheckpointError(f"quantization_config: the pattern {text[:80]!r} is too large; name modules instead")
    try:
        return re.compile(text)
    except re.error as error:
        raise CheckpointError(
            f"quantization_config: the pattern {text[:80]!r} is none ({error}); name modules instead"
        ) from None
