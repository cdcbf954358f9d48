"""What the registry tells and is told: the registered models, and its whole picture of the pool."""

from typing import Literal

from livescale.shared.messages.membership import HostReport, Member, WorkerReport
from livescale.shared.messages.message import Count, Message, Name
from livescale.shared.messages.model_spec import ModelSpec


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


class ModelList(Message, frozen=True, kw_only=True):
    """The registry's answer: all registered models."""

    models: list[ModelEntry] = []


class AskModels(Message, frozen=True):
    """Ask the registry for the models that are registered."""
