"""What a plan is made from."""

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import ModelEntry, Snapshot


class View(NamedTuple):
    """The pool as it is now, and the model in question. `silent`: workers whose reports are old."""

    snapshot: Snapshot
    entry: ModelEntry
    manifest: Manifest
    silent: AbstractSet[str] = frozenset()
