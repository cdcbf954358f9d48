"""What a host holds in its memory, and whether one more model fits. Pure: the bytes themselves are elsewhere."""

from msgspec import Struct
from msgspec.structs import replace

from shared.messages.membership import Holding
from shared.messages.parameters import DType, Manifest

MIB = 1024**2


class CacheFull(Exception):
    """A model needs more memory than the host cache has left; says how much, and what to do."""


class Held(Struct, frozen=True, kw_only=True):
    """A model in the cache. Its version is its content, so it is known once every block has been read."""

    model: str
    path: str
    dtype: DType
    size_bytes: int
    total: int
    read: int = 0
    manifest: Manifest | None = None

    def holding(self) -> Holding:
        version = "" if self.manifest is None else self.manifest.version
        return Holding(model=self.model, version=version, ready=list(range(self.read)), total=self.total)


class HostCache:
    """Models by name, each with the memory that it takes or will take when it is whole."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._models: dict[str, Held] = {}

    @property
    def used_bytes(self) -> int:
        return sum(held.size_bytes for held in self._models.values())

    def get(self, model: str) -> Held | None:
        return self._models.get(model)

    def models(self) -> list[Held]:
        """All, by name."""
        return [self._models[name] for name in sorted(self._models)]

    def find(self, version: str) -> Held | None:
        """A whole model of this version."""
        return next((held for held in self.models() if held.manifest and held.manifest.version == version), None)

    def admit(self, held: Held) -> None:
        """Set memory aside for a model that will be read, in place of another of its name. Raises CacheFull."""
        others = sum(other.size_bytes for other in self._models.values() if other.model != held.model)
        left = self.limit_bytes - others
        if held.size_bytes > left:
            raise CacheFull(
                f"cache_bytes: model {held.model!r} needs {_mib(held.size_bytes)} and the host cache has {_mib(left)} "
                f"of {_mib(self.limit_bytes)} left; start the host with a larger --cache-bytes, or another host"
            )
        self._models[held.model] = held

    def block_read(self, model: str) -> None:
        """Blocks are read in order."""
        held = self._models[model]
        self._models[model] = replace(held, read=held.read + 1)

    def whole(self, model: str, manifest: Manifest) -> None:
        self._models[model] = replace(self._models[model], manifest=manifest)

    def drop(self, model: str) -> None:
        """Give the memory back."""
        del self._models[model]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"
