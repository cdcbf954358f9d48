"""Which models a host holds in its memory, and whether one more fits. Pure: the bytes themselves are in `memory.py`."""

from collections.abc import Collection
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from livescale.shared.messages.membership import Holding, HostReport
from livescale.shared.messages.model_spec import Form
from livescale.shared.messages.parameters import DType, KvCacheDType, Layout, Manifest

MIB = 1024**2


class CacheFull(Exception):
    """A model needs more memory than the host cache has left. The message says how much, and what to do."""


class Held(Struct, frozen=True, kw_only=True):
    """A model in the cache, whole or on its way.

    Its version follows from its content, so it is known once every block has been read, by this host or another.
    `shards` is the number of ranks that it is cut for.
    """

    model: str
    path: str
    dtype: DType
    size_bytes: int
    total: int
    shards: int = 1
    layout: Layout = "plain"
    kv_cache_dtype: KvCacheDType = "auto"
    ready: frozenset[int] = frozenset()
    manifest: Manifest | None = None

    @property
    def form(self) -> Form:
        """What its version depends on besides its files, as in `ModelSpec.form`."""
        return self.dtype, self.shards, self.layout, self.kv_cache_dtype

    @property
    def is_whole(self) -> bool:
        return self.manifest is not None and len(self.ready) == self.total

    @property
    def version(self) -> str:
        """The version, empty while it is not known."""
        return "" if self.manifest is None else self.manifest.version

    def blocks_of(self, shard: int) -> range:
        """The indexes of one rank's blocks; an empty range where there are fewer ranks."""
        each = self.total // self.shards
        return range(shard * each, min((shard + 1) * each, self.total))

    def holding(self, *, sending: bool) -> Holding:
        return Holding(
            model=self.model,
            version=self.version,
            ready=sorted(self.ready),
            total=self.total,
            size_bytes=self.size_bytes,
            sending=sending,
        )


class HostCache:
    """Models by the number under which each was admitted.

    A model counts with all of its memory from the beginning. Versions of a model are held side by side.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held: dict[int, Held] = {}
        self._numbers = count()

    @property
    def used_bytes(self) -> int:
        return sum(held.size_bytes for held in self._held.values())

    def get(self, number: int) -> Held | None:
        return self._held.get(number)

    def items(self) -> list[tuple[int, Held]]:
        """All models with their numbers, sorted by name and age."""
        return sorted(self._held.items(), key=lambda item: (item[1].model, item[0]))

    def report(self, host: str, epoch: int, sending: Collection[str], flows_out: int) -> HostReport:
        """What the host tells of its memory. It is `sending` these versions, in so many flows."""
        return HostReport(
            id=host,
            epoch=epoch,
            holdings=[held.holding(sending=held.version in sending) for _, held in self.items()],
            cache_bytes=self.used_bytes,
            cache_limit_bytes=self.limit_bytes,
            flows_out=flows_out,
        )

    def find(self, version: str) -> int | None:
        """The number of a model of this version, a whole one before one on its way; None where there is none."""
        found = [(not held.is_whole, number) for number, held in self._held.items() if held.version == version]
        return min(found)[1] if found else None

    def numbers(self, model: str, version: str) -> list[int]:
        return [number for number, held in self.items() if (held.model, held.version) == (model, version)]

    def admit(self, held: Held) -> int:
        """Set memory aside for a model and return its number. Raises CacheFull."""
        left = self.limit_bytes - self.used_bytes
        if held.size_bytes > left:
            raise CacheFull(
                f"cache_bytes: model {held.model!r} needs {_mib(held.size_bytes)} and the host cache has {_mib(left)} "
                f"of {_mib(self.limit_bytes)} left; start the host with a larger --cache-bytes "
                "(LIVESCALE_CACHE_BYTES), or a host on another machine"
            )
        number = next(self._numbers)
        self._held[number] = held
        return number

    def block_ready(self, number: int, index: int) -> None:
        held = self._held[number]
        self._held[number] = replace(held, ready=held.ready | {index})

    def whole(self, number: int, manifest: Manifest) -> Held:
        """Note that every block is here, and so which version it is."""
        held = self._held[number] = replace(self._held[number], manifest=manifest)
        return held

    def drop(self, number: int) -> None:
        """Forget the model and give its memory back."""
        del self._held[number]


def check_memory(model: str, size_bytes: int, free_bytes: int) -> None:
    """Raises CacheFull where the machine lacks the memory, which may be less than the cache's limit allows."""
    if size_bytes > free_bytes:
        raise CacheFull(
            f"model {model!r} needs {_mib(size_bytes)} and this machine has {_mib(max(0, free_bytes))} of memory left, "
            "or its container has; free some, or start a host on another machine"
        )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"
