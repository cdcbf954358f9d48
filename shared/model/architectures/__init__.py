"""The architectures that are served, one module each. A module is found by being here, called as the `model_type`:
where that has a hyphen, the module has two underscores."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.architecture import Architecture


@cache
def model_types() -> tuple[str, ...]:
    """List the `model_type` of each architecture that is declared here."""
    return tuple(sorted(module.name.replace("__", "-") for module in iter_modules(__path__)))


def architecture_of(config: ModelConfig) -> Architecture:
    """The declaration that a configuration was made by."""
    architecture = find_architecture(config.family)
    if architecture is None:
        raise ValueError(f"there is no architecture {config.family!r}; there are {', '.join(model_types())}")
    return architecture


def find_architecture(model_type: str) -> Architecture | None:
    """The declaration of an architecture, None where there is none."""
    if model_type not in model_types():
        return None
    architecture = import_module(f"{__name__}.{model_type.replace('-', '__')}").ARCHITECTURE
    assert isinstance(architecture, Architecture)
    return architecture
