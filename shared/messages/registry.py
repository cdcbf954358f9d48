"""What the registry tells and is told: the registered models and their copies on hosts, incidents of late, and its
whole picture of the pool."""

from typing import Literal

from livescale.shared.messages.membership import HostReport, Member, ServiceName, WorkerReport
from livescale.shared.messages.message import Amount, Count, Message, Name, Positive
from livescale.shared.messages.model_spec import Form, ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import ChunkBytes, Inflow, Secret


class ModelEntry(Message, frozen=True, kw_only=True):
    """A registered model.

    `state` is "reading" until its content is known, at the latest when a host has it in memory. A model that is
    "removing" takes no requests, and its instances drain. `error` says why it is "failed", or what stands in its way.
    `copies`: the nodes that hold all of it in memory. `next`: what is being read to take its place as a new version.
    """

    spec: ModelSpec
    state: Literal["reading", "ready", "failed", "removing"]
    version: Name | None = None
    size_bytes: Count = 0
    blocks: Count = 0
    max_model_len: Count = 0
    created: Count = 0
    error: str | None = None
    copies: list[Name] = []
    next: ModelSpec | None = None

    @property
    def rank_bytes(self) -> int:
        """Bytes of parameters that each worker of an instance holds."""
        return -(-self.size_bytes // self.spec.tensor_parallel_size)


class AskSnapshot(Message, frozen=True):
    """Ask the registry for all that it knows: a `Snapshot`."""


class Snapshot(Message, frozen=True, kw_only=True):
    """The registry's picture: members, the last report of every live worker and host, the models."""

    members: list[Member] = []
    workers: list[WorkerReport] = []
    hosts: list[HostReport] = []
    models: list[ModelEntry] = []


class Register(Message, frozen=True, kw_only=True):
    """Operator -> registry: serve this model. Answered once the checkpoint is checked, before it is read.

    `named`: the fields of `spec` that the operator gave, as `bounds.prefill_hi`; the others stay as they are, or have
    their defaults. None: all of `spec` is meant.
    """

    spec: ModelSpec
    named: list[Name] | None = None


class Named(Message, frozen=True, kw_only=True):
    """Names the model that a question or command is about; the subject says which question or command it is."""

    model: Name


class AskAdapter(Message, frozen=True, kw_only=True):
    """Worker -> registry: name the content of the adapter of this version, which a request uses."""

    version: Name


class AdapterContent(Message, frozen=True, kw_only=True):
    """The registry's answer: where an adapter is on disk, and what it consists of."""

    spec: ModelSpec
    manifest: Manifest


class ModelList(Message, frozen=True, kw_only=True):
    """The registry's answer: all registered models."""

    models: list[ModelEntry] = []


class AskModels(Message, frozen=True):
    """Ask the registry for the models that are registered."""


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
    """Event of a host: a model is whole in its cache, or could not be read.

    `path` and `form` say what it was read as (`ModelSpec.form`). Where a model is registered again meanwhile, that is
    not what it is now.
    """

    host: Name
    model: Name
    path: str | None = None
    form: Form | None = None
    manifest: Manifest | None = None
    error: str | None = None


class WasAway(Message, frozen=True, kw_only=True):
    """A process -> registry: it slept for so many `seconds`, as it was stopped or its machine had no processor for it.
    It woke up less than a heartbeat before `at`."""

    service: ServiceName
    id: Name
    host: Name
    seconds: Amount
    at: Amount


class ProcessEnded(Message, frozen=True, kw_only=True):
    """Event of a supervisor: how a process ended, or why it was killed, and what is done about it."""

    id: Name
    reason: str
    at: Amount


class Incident(Message, frozen=True, kw_only=True):
    """Something that happened to a process or a machine, which `who` names."""

    at: Amount
    kind: Literal["death", "end", "start", "stall"]
    who: Name
    text: str


class AskIncidents(Message, frozen=True, kw_only=True):
    """Ask the registry for the last incidents; newest last."""

    limit: Positive = 20


class IncidentList(Message, frozen=True, kw_only=True):
    """The registry's answer: incidents, the newest last."""

    incidents: list[Incident] = []
