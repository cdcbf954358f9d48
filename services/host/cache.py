"""What a host holds in its memory, and whether one more model fits. Pure: the bytes themselves are elsewhere."""

from msgspec import Struct
from msgspec.structs import replace

from shared.messages.membership import Holding
from shared.messages.parameters import DType, Manifest

MIB = 1024**2


class CacheFull(Exception):
    """A model needs more memory than the host cache has left; says how much, and what to do."""


class Held(Struct, frozen=True, kw_only=True):
    """A model in the cache. Its version is its content, so it is known once every block has been read, by this or an
    earlier host."""

    model: str
    path: str
    dtype: DType
    size_bytes: int
    total: int
    read: int = 0
    manifest: Manifest | None = None

    @property
    def is_whole(self) -> bool:
        return self.manifest is not None and self.read == self.total

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
        """A model of this version, whole or being read."""
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

    def whole(self, model: str, manifest: Manifest) -> Held:
        """Every block has been read."""
        held = self._models[model] = replace(self._models[model], manifest=manifest)
        return held

    def drop(self, model: str) -> None:
        """Give the memory back."""
        del self._models[model]


def check_memory(model: str, size_bytes: int, free_bytes: int) -> None:
    """Raises CacheFull: the host cache's limit is what may be used, not what there is."""
    if size_bytes > free_bytes:
        raise CacheFull(
            f"model {model!r} needs {_mib(size_bytes)} and this machine has {_mib(max(0, free_bytes))} of memory left, "
            "or its container has; free some, or start a host on another machine"
        )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"
