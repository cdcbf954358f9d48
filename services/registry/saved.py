"""What the registry keeps on the bus's key-value store, so that its successor need not start from nothing.

Only small declared state: the models, and who had joined. Whoever restarts the store gets all of it again.
"""

import asyncio
from urllib.parse import quote

import structlog

from shared.bus.contract import BusError, KeyValue, ServiceAbsent
from shared.bus.write_behind import RETRY_SECONDS, WriteBehind
from shared.messages.membership import Joined, Member, ModelEntry

PERSISTED = Member | ModelEntry | Joined
EPOCHS = "epochs.reserved"

log = structlog.get_logger()


class SavedState:
    """Writes behind: `put` and `delete` return at once, `run` does the work and tries until it succeeds.

    Epochs up to `epochs` may have been given out by whoever wrote this.
    """

    def __init__(self, store: KeyValue) -> None:
        self.epochs = 0
        self._store = store
        self._values: dict[str, PERSISTED] = {}
        self._writing = WriteBehind(store, "state")

    async def load(self) -> tuple[list[ModelEntry], list[Member]]:
        """What an earlier registry left. Empty on a server that keeps nothing."""
        while True:
            try:
                models = await self._store.list("models", ModelEntry)
                members = await self._store.list("members", Member)
                epochs = await self._store.get(EPOCHS, Joined)
            except ServiceAbsent as error:
                log.warning("nothing_is_kept", error=str(error))
                return [], []
            except BusError as error:
                log.warning("saved_state_unreadable", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._values = {**models, **members}
                self.epochs = 0 if epochs is None else epochs.epoch
                return list(models.values()), list(members.values())

    def put_model(self, entry: ModelEntry) -> None:
        self._set(f"models.{_word(entry.spec.name)}", entry)

    def put_member(self, member: Member) -> None:
        self._set(f"members.{member.id}", member)

    def reserve_epochs(self, last: int) -> None:
        """A successor gives out higher ones only: dead members are deleted, and their epochs with them."""
        self.epochs = last
        self._set(EPOCHS, Joined(epoch=last))

    def delete_model(self, name: str) -> None:
        self._set(f"models.{_word(name)}", None)

    def delete_member(self, id: str) -> None:
        self._set(f"members.{id}", None)

    def _set(self, key: str, value: PERSISTED | None) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value
        self._writing.set(key, value)

    def save_again(self) -> None:
        """The store may have been lost with its server."""
        for key, value in self._values.items():
            if not self._writing.holds(key):
                self._writing.set(key, value)

    async def run(self) -> None:
        await self._writing.run()


def _word(name: str) -> str:
    """A model's name as one word of a key."""
    return quote(name, safe="").replace(".", "%2E").replace("%", "=")
