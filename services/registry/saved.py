"""What the registry keeps on the bus's key-value store, for the registry that is started after it.

Only what cannot be heard again is kept: the models with their manifests, adapters of late, and the members. A store
that is started again, empty, gets all of it once more.
"""

from typing import NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from livescale.shared.bus.contract import KeyValue
from livescale.shared.bus.write_behind import WriteBehind
from livescale.shared.messages.membership import Joined, Member
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import AdapterContent, ModelEntry

MODELS, NEXT, MANIFESTS, MEMBERS, EPOCHS = "models", "next", "manifests", "members", "epochs"
ADAPTERS = "adapters"
RESERVED = f"{EPOCHS}.reserved"


class SavedModel(NamedTuple):
    """A model as it was saved. `next` is the version that was being read to replace it."""

    entry: ModelEntry
    manifest: Manifest | None
    next: ModelEntry | None


class SavedState:
    """Writes behind: `put_...` and `delete_...` return at once, and `run` writes until it succeeds.

    The registry that wrote this may have given out epochs up to `epochs`.
    """

    def __init__(self, store: KeyValue) -> None:
        self.epochs = 0
        self._writing = WriteBehind(store, "state")
        self.run = self._writing.run
        self.save_again = self._writing.save_again

    async def load(self) -> tuple[list[SavedModel], list[Member]]:
        """What an earlier registry left; two empty lists on a server that keeps nothing."""
        models = await self._writing.load(MODELS, ModelEntry)
        manifests = await self._writing.load(MANIFESTS, Manifest)
        nexts = await self._writing.load(NEXT, ModelEntry)
        members = await self._writing.load(MEMBERS, Member)
        epochs = await self._writing.load(EPOCHS, Joined)
        self.epochs = epochs[RESERVED].epoch if RESERVED in epochs else 0
        saved = {entry.spec.name: entry for entry in models.values()}
        words = {name: _word(name) for name in saved}
        return [
            SavedModel(entry, manifests.get(f"{MANIFESTS}.{words[name]}"), nexts.get(f"{NEXT}.{words[name]}"))
            for name, entry in saved.items()
        ], list(members.values())

    async def load_adapters(self) -> list[AdapterContent]:
        """The adapters that an earlier registry knew, those included that were not registered any more."""
        return list((await self._writing.load(ADAPTERS, AdapterContent)).values())

    def put_adapter(self, content: AdapterContent) -> None:
        self._writing.set(f"{ADAPTERS}.{content.manifest.version}", content)

    def delete_adapter(self, version: str) -> None:
        self._writing.set(f"{ADAPTERS}.{version}", None)

    def put_model(self, entry: ModelEntry, manifest: Manifest | None = None, next: ModelEntry | None = None) -> None:
        """Save a model. Its holders are not saved, as they report themselves."""
        word = _word(entry.spec.name)
        self._writing.set(f"{MODELS}.{word}", replace(entry, copies=[], error=None))
        self._writing.set(f"{MANIFESTS}.{word}", manifest)
        self._writing.set(f"{NEXT}.{word}", next)

    def put_member(self, member: Member) -> None:
        self._writing.set(f"{MEMBERS}.{member.id}", member)

    def reserve_epochs(self, last: int) -> None:
        """Save that epochs up to `last` may be given out; a later registry begins above it.

        The members alone do not tell, as dead ones are deleted with their epochs.
        """
        self.epochs = last
        self._writing.set(RESERVED, Joined(epoch=last))

    def delete_model(self, name: str) -> None:
        for kind in (MODELS, MANIFESTS, NEXT):
            self._writing.set(f"{kind}.{_word(name)}", None)

    def delete_member(self, id: str) -> None:
        self._writing.set(f"{MEMBERS}.{id}", None)


def _word(name: str) -> str:
    """A model's name as one word of a key: characters that keys lack are escaped."""
    return quote(name, safe="").replace(".", "%2E").replace("%", "=")
