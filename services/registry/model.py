"""A registered model: what may be declared of it, the version that is served, and the one to take its place. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import asdict, replace

from livescale.services.registry.placement import CopyDemand
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import HostReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import ModelChecked, ModelEntry, ModelRead

LEAST_LOAD = 0.001  # the lowest scaling bound: capacities are divided by it
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")

ModelState = Literal["reading", "ready", "failed", "removing"]


def check_spec(spec: ModelSpec) -> None:
    """Raises Refusal 400, which names the first field that is out of range."""
    bounds = spec.bounds
    rules = (
        (MODEL_NAME.fullmatch(spec.name) is not None, "name must be 1 to 128 of letters, digits and . _ / -"),
        (spec.path != "", "path must name a directory"),
        (spec.min_instances >= 0, "min_instances must be 0 or more"),
        (spec.max_instances >= 1, "max_instances must be 1 or more"),
        (
            spec.max_instances >= spec.min_instances,
            f"max_instances must be at least min_instances, which is {spec.min_instances}: name both",
        ),
        (
            LEAST_LOAD <= bounds.prefill_lo <= bounds.prefill_hi,
            f"bounds: {LEAST_LOAD} <= prefill_lo <= prefill_hi must hold",
        ),
        (
            LEAST_LOAD <= bounds.decode_lo <= bounds.decode_hi <= 1,
            f"bounds: {LEAST_LOAD} <= decode_lo <= decode_hi <= 1 must hold",
        ),
        (LEAST_LOAD <= bounds.kv_lo <= bounds.kv_hi, f"bounds: {LEAST_LOAD} <= kv_lo <= kv_hi must hold"),
        (spec.upscale_delay_s >= 0, "upscale_delay_s must be 0 or more"),
        (spec.downscale_delay_s >= 0, "downscale_delay_s must be 0 or more"),
        (spec.downscale_to_zero_delay_s >= 0, "downscale_to_zero_delay_s must be 0 or more"),
        (spec.max_model_len is None or spec.max_model_len > 0, "max_model_len must be 1 or more"),
    )
    for holds, message in rules:
        if not holds:
            raise Refusal(400, f"model {spec.name!r}: {message}")


def complete_spec(said: ModelSpec, named: Sequence[str] | None, rest: ModelSpec) -> ModelSpec:
    """The fields of `said` that are `named`, and all others from `rest`.

    `rest` is the model as it is registered, or the defaults. Where `named` is None, `said` is complete as it is.
    """
    if named is None:
        return said
    parts = {name.partition(".")[2]: getattr(said.bounds, name.partition(".")[2]) for name in named if "." in name}
    values = {name: value for name, value in asdict(said).items() if name in named}
    return replace(rest, **{"bounds": replace(rest.bounds, **parts), **values, "name": said.name})


def adapter_spec(spec: ModelSpec, base: ModelSpec) -> ModelSpec:
    """An adapter with what follows from its base. It has no instances of its own. Raises Refusal 409 for a base that
    takes no adapters."""
    if base.base is not None:
        raise Refusal(409, f"adapter {spec.name!r}: its base {base.name!r} is an adapter itself; name a model")
    return ModelSpec(
        name=spec.name,
        path=spec.path,
        dtype=base.dtype,
        min_instances=0,
        max_model_len=base.max_model_len,
        kv_cache_dtype=base.kv_cache_dtype,
        base=base.name,
        base_path=base.path,
    )


@dataclass
class Content:
    """One content of a model's checkpoint, as a host has found it.

    `reader` is the host that was commanded to get it, until it is whole there or the host is gone; `has_begun` says
    whether that host has answered. Before its version is known, it is known to be `other_than` some.
    """

    spec: ModelSpec
    checked: ModelChecked
    reader: str | None = None
    has_begun: bool = False
    other_than: frozenset[str] = frozenset()

    def begin(self, host: str) -> None:
        """Note that this host has answered, and gets it now."""
        self.has_begun = self.has_begun or self.reader == host

    @property
    def version(self) -> str:
        """The version of this content, empty until a host has read it."""
        return "" if self.checked.manifest is None else self.checked.manifest.version

    def is_from(self, said: ModelSpec | ModelRead) -> bool:
        return (self.spec.path, self.spec.form) == (said.path, said.form)

    def is_meant_by(self, event: ModelRead) -> bool:
        """Whether a host has read these files, in this form."""
        return event.path is None or self.is_from(event)

    def demand(self, model: str, version: str, *, needed: bool) -> CopyDemand:
        """What hosts are to keep of it, as this version of the model."""
        return CopyDemand(model, version, self.checked.size_bytes, needed, self.reader, self.other_than)

    def entry(self, created: int) -> ModelEntry:
        return ModelEntry(
            spec=self.spec,
            state="reading",
            size_bytes=self.checked.size_bytes,
            blocks=self.checked.blocks,
            max_model_len=self.checked.max_model_len,
            created=created,
        )


@dataclass
class RegisteredModel:
    """A model that operators have registered, and the content that its name stands for.

    `next` is the content that replaces `current` once it is in memory. Until `kept_until` the last instance may be
    given back, and a host has to keep a copy; `in_the_way` says why none can. `was_whole` says whether some host has
    had all of it in memory since the model is known.
    """

    current: Content
    created: int
    next: Content | None = None
    manifest: Manifest | None = None
    was_whole: bool = False
    error: str | None = None
    in_the_way: str | None = None
    kept_until: float = 0.0
    removed_at: float | None = None

    @property
    def spec(self) -> ModelSpec:
        return self.current.spec

    @property
    def version(self) -> str:
        """The version that the name stands for, empty until a host has read it."""
        return self.current.version if self.manifest is None else self.manifest.version

    @property
    def state(self) -> ModelState:
        if self.removed_at is not None:
            return "removing"
        if self.error is not None and not self.was_whole:
            return "failed"  # with a manifest from an earlier read a scale under way goes on once it is read again
        return "reading" if self.manifest is None else "ready"

    @property
    def contents(self) -> Iterator[Content]:
        yield self.current
        if self.next is not None:
            yield self.next

    def content(self, version: str) -> Content:
        """The content that an order for this version means."""
        return self.next if self.next is not None and version != self.version else self.current

    def demands(self, *, needed: bool) -> Iterator[CopyDemand]:
        """The copies that hosts are to keep of this model, none once it is being removed."""
        name = self.spec.name
        if self.removed_at is None:
            yield self.current.demand(name, self.version, needed=needed)
            if self.next is not None:
                yield self.next.demand(name, self.next.version, needed=True)

    def read(self, event: ModelRead, *, is_held: bool) -> None:
        """Take a host's word that it has the model in memory, or could not read it.

        `is_held` says whether any process holds the version that the name stands for.
        """
        manifest = event.manifest
        is_known = manifest is not None and self.manifest is not None and manifest.version == self.version
        content = self._read_as(event, is_known=is_known)
        if not is_known and not any(one.is_meant_by(event) for one in self.contents):
            return  # it was read as what the model was registered as before
        if content is not None:
            content.reader = None
        if manifest is None:
            self._not_read(content, event.error or f"{event.host} gave no reason")
        elif self.manifest is None or manifest.version == self.version:
            self._confirm(content, manifest)
        elif content is not None and content is self.next:
            self._take_over(content, manifest)
        elif content is not None and not is_held:
            self._replace_by(content, manifest)  # there is nothing else left of it
        elif content is not None:
            self.error = f"the files at {self.spec.path} have changed; register the model again to serve them"

    def _read_as(self, event: ModelRead, *, is_known: bool) -> Content | None:
        """The content that this host was to get, and has got. It may yet have to get another one: it copies what is
        served, and is then to read what takes its place."""
        for content in self.contents:
            if content.reader == event.host and content.is_meant_by(event):
                return content
        # What is served may have been read from other files.
        return self.current if is_known and self.current.reader == event.host else None

    def _not_read(self, content: Content | None, error: str) -> None:
        if content is not None and content is self.next:
            self.next, error = None, f"the new version could not be read: {error}"
        self.error = error

    def _confirm(self, content: Content | None, manifest: Manifest) -> None:
        """The content read is what the name stands for, perhaps from other files."""
        if content is not None and content is self.next:
            self._replace_by(content, manifest)
        self.manifest, self.was_whole, self.error = manifest, True, None

    def _take_over(self, content: Content, manifest: Manifest) -> None:
        old = self.manifest
        if old is not None and old.config.vocab_size != manifest.config.vocab_size:
            self._not_read(content, "it has another vocabulary; remove the model first, or rename one")
        else:
            self._replace_by(content, manifest)

    def _replace_by(self, content: Content, manifest: Manifest) -> None:
        """Let the name stand for this content from here on."""
        self.current, self.manifest, self.was_whole = content, manifest, True
        self.next = self.error = self.in_the_way = None
        content.reader = None

    def forget_reader(self, host: str) -> bool:
        """Note that this host gets nothing of the model any more. Returns whether it was to get some."""
        its = [content for content in self.contents if content.reader == host]
        for content in its:
            content.reader = None
        return bool(its)

    def forget_readers(self) -> None:
        for content in self.contents:
            content.reader = None

    def doubt_reader(self, host: HostReport, version: str) -> None:
        """Wait for this host no longer: it has all of this version, and its word of that may have been lost. Of a new
        version it is asked again; so it is of one that is not known yet, where it has begun that and reads none of this
        model any more: it may have turned out to be what the host has."""
        is_reading = any(one.model == self.spec.name and not one.is_whole for one in host.holdings)
        for content in self.contents:
            is_over = content.has_begun and not content.version and not is_reading
            if content.reader == host.id and (is_over or content is self.content(version)):
                content.reader = None

    def entry(self, copies: Sequence[str]) -> ModelEntry:
        checked = self.current.checked
        return ModelEntry(
            spec=self.spec,
            state=self.state,
            version=self.version or None,
            size_bytes=checked.size_bytes,
            blocks=checked.blocks,
            max_model_len=checked.max_model_len,
            created=self.created,
            error=self.error or self.in_the_way,
            copies=list(copies),
            next=None if self.next is None else self.next.spec,
        )


def content_of(entry: ModelEntry) -> Content:
    """The content of a model as an earlier registry had saved it."""
    checked = ModelChecked(size_bytes=entry.size_bytes, blocks=entry.blocks, max_model_len=max(1, entry.max_model_len))
    return Content(entry.spec, checked)
