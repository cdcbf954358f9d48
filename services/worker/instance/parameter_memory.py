"""A worker's memory for parameters, which outlives the instances that they are of."""

from collections.abc import Sequence
from typing import Protocol

from livescale.services.worker.instance.loading import BlockMemory, Loading
from livescale.shared.bus.contract import Refusal
from livescale.shared.memory.arena import ArenaFull
from livescale.shared.messages.transfers import Load


class AnyArena(Protocol):
    """Memory for parameters, of the host or of a GPU."""

    def place(self, sizes: Sequence[int]) -> BlockMemory:
        """Reserve a stretch for each block. Raises ArenaFull and reserves nothing where there is too little."""

    def clear(self) -> None:
        """Free all stretches, so that the parameters of another model can be placed."""


class ParameterMemory:
    """Places parameters in the arena. With `keep` those of an instance that has drained stay parked until others need
    the memory: they serve again without a byte being sent (LambdaScale 4.4)."""

    def __init__(self, arena: AnyArena, keep: bool) -> None:
        self._arena = arena
        self._keep = keep
        self._memory: BlockMemory | None = None
        self._held_as = ""

    @property
    def parked(self) -> str | None:
        """The version of which all parameters are here although no instance has them."""
        return None if self._memory is None else self._held_as

    def place(self, command: Load) -> BlockMemory:
        """Memory for each block; what is parked goes, unless it is what the command counts on.

        Raises Refusal 409 where there is too little memory, or the parameters are not here any more.
        """
        memory, held_as = self._memory, self._held_as
        if command.parked:
            if memory is None or held_as != command.manifest.held_as:
                found = "none" if memory is None else held_as
                raise Refusal(409, f"parked: parameters of {command.manifest.held_as} are wanted, {found} are here")
            self._memory = None
            return memory
        self.clear()
        try:
            return self._arena.place([block.size_bytes for block in command.manifest.blocks])
        except ArenaFull as error:
            raise Refusal(409, f"arena_bytes: {error}") from error

    def park(self, loading: Loading | None) -> bool:
        """Keep these parameters, if they are all here and in no other process's memory. Returns whether they stay.

        Ranks of an instance of several are not kept: they would have to come back together.
        """
        kept = None if loading is None or loading.manifest.shards > 1 or not self._keep else loading.own_memory()
        if loading is None or kept is None:
            return False
        self._memory, self._held_as = kept, loading.manifest.held_as
        return True

    def forget(self) -> None:
        """Count on parked parameters no more, although they may still be read: `clear` follows."""
        self._memory = None

    def clear(self) -> None:
        """Forget all parameters. Nobody may use them any more."""
        self._memory = None
        self._arena.clear()
