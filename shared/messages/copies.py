"""Copies of models in hosts' memories: read, fetched from another, released."""

from livescale.shared.messages.message import Count, Message, Name, Positive
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import ChunkBytes, Inflow, Secret


class CheckModel(Message, frozen=True, kw_only=True):
    """Registry -> host: is this checkpoint well-formed, and how large is it? Nothing is read."""

    spec: ModelSpec


class ReadModel(Message, frozen=True, kw_only=True):
    """Registry -> host: check this checkpoint and start to read it into the host cache."""

    spec: ModelSpec


class FetchModel(Message, frozen=True, kw_only=True):
    """Registry -> host: receive this version into the host cache, from nodes that have all of it.

    When it is told again for the same plan, the host keeps what arrived and goes on along these flows; without any, it
    reads the rest from disk. Where there are flows and none is new, the command came late or twice, and changes
    nothing.
    """

    plan_id: Name
    spec: ModelSpec
    manifest: Manifest
    inflows: list[Inflow]
    chunk_bytes: ChunkBytes
    epoch: Count
    secret: Secret = b""


class ReleaseModel(Message, frozen=True, kw_only=True):
    """Registry -> host: give back the memory of this version; with an empty `version`, of what is being read.

    Idempotent. Refused while the version is being sent.
    """

    model: Name
    version: str


class ModelChecked(Message, frozen=True, kw_only=True):
    """Host -> registry: the checkpoint is well-formed; reading has begun.

    With a manifest its content is known from an earlier read, and the host sends blocks as it reads them.
    """

    size_bytes: Count
    blocks: Count
    max_model_len: Positive
    manifest: Manifest | None = None


class ModelRead(Message, frozen=True, kw_only=True):
    """Event of a host: a model is whole in its cache, or could not be read."""

    host: Name
    model: Name
    manifest: Manifest | None = None
    error: str | None = None
