"""Adapters by version, those included that were replaced or removed a while ago: requests that asked for one before go
on with it, on whatever worker."""

from collections.abc import Iterable

from livescale.services.registry.saved import SavedState
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.registry import AdapterContent

KEPT_SECONDS = 600.0  # longer than requests take


class AdapterVersions:
    """Adapters that are registered, or were less than `KEPT_SECONDS` ago. They are saved. Times are of one clock."""

    def __init__(self, saved: SavedState) -> None:
        self._saved = saved
        self._known: dict[str, AdapterContent] = {}  # by version
        self._last: dict[str, float] = {}  # when it was registered, by version

    def restore(self, saved: Iterable[AdapterContent], now: float) -> None:
        """Take over what an earlier registry saved, as if all had been registered until now."""
        for content in saved:
            self._known[content.manifest.version], self._last[content.manifest.version] = content, now

    def note(self, registered: Iterable[AdapterContent], now: float) -> None:
        """Note the adapters that are registered now. It is called before one is replaced or removed."""
        for content in registered:
            version = content.manifest.version
            if not self.knows(version) or self._known[version].spec != content.spec:
                self._known[version] = content
                self._saved.put_adapter(content)
            self._last[version] = now
        for version in [version for version, last in self._last.items() if now - last > KEPT_SECONDS]:
            del self._known[version], self._last[version]
            self._saved.delete_adapter(version)

    def knows(self, version: str) -> bool:
        return version in self._known

    def find(self, version: str) -> AdapterContent:
        """Raises Refusal 404 for a version that nobody has registered, or not for long."""
        if not self.knows(version):
            raise Refusal(404, f"adapter {version} is not registered, and was not in the last {KEPT_SECONDS:.0f} s")
        return self._known[version]
