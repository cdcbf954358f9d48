"""What hosts hold, what they are to hold, and what is ordered for it. Pure."""

from dataclasses import dataclass

MIB = 1024**2


@dataclass(frozen=True)
class Copy:
    """Memory that a host has set aside. `version` is empty until it is known."""

    model: str
    version: str
    size_bytes: int
    whole: bool
    sending: bool = False


@dataclass(frozen=True)
class HostMemory:
    """A host cache: what it may take, and what it has taken."""

    id: str
    limit_bytes: int
    copies: tuple[Copy, ...] = ()

    @property
    def used_bytes(self) -> int:
        return sum(copy.size_bytes for copy in self.copies)

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes


@dataclass(frozen=True)
class Demand:
    """A version that a host is to keep. `needed`: there is no instance to rely on. `coming`: the host that was told to
    get it."""

    model: str
    version: str
    size_bytes: int
    needed: bool
    coming: str | None = None


@dataclass(frozen=True)
class MakeCopy:
    """Have this host get this version."""

    host: str
    model: str
    version: str
    reason: str


@dataclass(frozen=True)
class FreeCopy:
    """Have this host give the memory of this version back."""

    host: str
    model: str
    version: str
    reason: str


@dataclass(frozen=True)
class NoRoom:
    """No host can keep this version, whatever is released."""

    model: str
    version: str
    reason: str


Order = MakeCopy | FreeCopy | NoRoom


def as_mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"
