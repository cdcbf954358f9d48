"""The key-value store of the in-process bus."""

from collections.abc import Callable

from livescale.shared.bus.codec import decode, encode
from livescale.shared.bus.contract import Disconnected, M
from livescale.shared.messages.message import Message


class LocalKeyValue:
    """The broker's store, which survives `down()`."""

    def __init__(self, values: dict[str, bytes], connected: Callable[[], bool]) -> None:
        self._all = values
        self._connected = connected

    async def put(self, key: str, value: Message) -> None:
        self._values[key] = encode(value, json=True)

    async def get(self, key: str, type: type[M]) -> M | None:
        data = self._values.get(key)
        if data is None:
            return None
        value: M = decode(type, data, json=True)
        return value

    async def delete(self, key: str) -> None:
        self._values.pop(key, None)

    async def list(self, prefix: str, type: type[M]) -> dict[str, M]:
        within = prefix and prefix + "."
        return {
            key: decode(type, data, json=True) for key, data in sorted(self._values.items()) if key.startswith(within)
        }

    @property
    def _values(self) -> dict[str, bytes]:
        if not self._connected():
            raise Disconnected("the bus is down")
        return self._all
