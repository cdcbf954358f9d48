"""The keys of a `quantization_config`, checked as they are read, and which packings they give to modules. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from livescale.shared.messages.quantization import Codes, Packing, StoredAs
from livescale.shared.model.declaration.config_file import CheckpointError
from livescale.shared.model.declaration.module_patterns import Module

REMEDY = "use the checkpoint in bfloat16, or one in AWQ, GPTQ, FP8 or of compressed-tensors"


class CheckedKeys:
    """The keys of an object of the file. Raises CheckpointError, which names the key."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self._place = place

    def fail(self, key: str, problem: str, remedy: str = REMEDY) -> CheckpointError:
        return CheckpointError(f"{self._place}: {key} {problem}; {remedy}")

    def whole(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= 1 << 24:
            raise self.fail(key, f"is {str(value)[:80]!r}, must be a whole number")
        return value

    def text(self, key: str, default: str) -> str:
        return str(self.values.get(key, default))[:80]

    def names(self, *keys: str) -> list[str]:
        return [name for key in keys for name in self._list(key) if isinstance(name, str)]

    def _list(self, key: str) -> list[Any]:
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self.fail(key, "must be a list")
        return value

    def object(self, key: str) -> "CheckedKeys":
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.fail(key, "must be an object")
        return CheckedKeys(value, f"{self._place}.{key}")

    def refuse(self, key: str, problem: str) -> None:
        """Refuse a key that is there and says anything."""
        if self.values.get(key):
            raise self.fail(key, problem)


@dataclass(frozen=True)
class ModulePackings:
    """What a configuration says: how matrices are stored, and the packing of a module of the checkpoint, by its name;
    None where it is not quantized. `scale_rows`: how many outputs share a scale; 0 is all of them."""

    stored: StoredAs
    packing: Callable[[Module], Packing | None]
    scale_rows: int = 1


def integer_codes(values: CheckedKeys, bits: int) -> Codes:
    """The codes of integers of so many bits. Raises CheckpointError for others than 4 and 8."""
    if bits not in (4, 8):
        raise values.fail("bits", f"is {bits}; supported are 4 and 8")
    return "int4" if bits == 4 else "int8"


def group_inputs(values: CheckedKeys, size: int) -> int:
    """How many inputs share a scale where the file says `size`; 0 is all. Raises CheckpointError for an odd number."""
    if size == -1:
        return 0
    if size < 2 or size % 2:
        raise values.fail("group_size", f"is {size}, must be even")
    return size
