"""A worker's life as a state machine: spare -> loading -> (live ->) serving -> draining -> spare.

One that drains may be recalled, and serves again. The leader of a pipeline that breaks goes back from live to loading.
Pure: the machine keeps the state and refuses commands that do not fit; the actor carries them out. `check_load` refuses
a LOAD that no worker could carry out.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Role
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import Drain, Load, Serve
from livescale.shared.model.block_layout import shard_layouts
from livescale.shared.model.sharding import check_shards
from livescale.shared.policy.invariants import StateMachine, check


class WorkerState(StrEnum):
    """The states of a worker, in the papers' words."""

    SPARE = "spare"
    LOADING = "loading"
    LIVE = "live"
    SERVING = "serving"
    DRAINING = "draining"


MOVES = StateMachine(
    "a worker",
    {
        WorkerState.SPARE: frozenset({WorkerState.LOADING}),
        WorkerState.LOADING: frozenset({WorkerState.LIVE, WorkerState.SERVING, WorkerState.SPARE}),
        WorkerState.LIVE: frozenset({WorkerState.LOADING, WorkerState.SERVING, WorkerState.SPARE}),
        WorkerState.SERVING: frozenset({WorkerState.DRAINING}),
        WorkerState.DRAINING: frozenset({WorkerState.SERVING, WorkerState.SPARE}),
    },
)


@dataclass(frozen=True)
class Assignment:
    """The instance that this worker loads or serves."""

    plan_id: str
    instance: str
    model: str
    role: Role
    rank: int
    manifest: Manifest


class Lifecycle:
    """The state and the assignment. Every method raises Refusal 409 where the state does not allow it.

    A worker that was declared dead starts again with a new one.
    """

    def __init__(self) -> None:
        self.state = WorkerState.SPARE
        self.assignment: Assignment | None = None
        self.ready: set[int] = set()
        self._gives_back = False  # what it loads
        self._drained = ""  # the instance that it was, until it loads another
        self._recalled = ""  # the last scale in that let it drain and recalled it

    def goes_on(self, command: Load) -> bool:
        """Whether this LOAD repeats the plan that is being loaded for: what has arrived stays."""
        held = self.assignment
        return held is not None and self.aborts(command.plan_id) and held.instance == command.instance

    def load(self, command: Load) -> Assignment:
        """Go from spare to loading, and note what is loaded."""
        if self.state is not WorkerState.SPARE:
            raise Refusal(409, f"cannot load {command.instance}: the worker is {self.state}, not spare")
        self._advance(WorkerState.LOADING)
        self._drained = ""
        self.assignment = Assignment(
            command.plan_id, command.instance, command.model, command.role, command.rank, command.manifest
        )
        return self.assignment

    def block_ready(self, plan_id: str, index: int) -> bool:
        """Count block `index` as ready. Returns False if it no longer belongs to what is being loaded."""
        if self.assignment is None or self.assignment.plan_id != plan_id:
            return False
        self.ready.add(index)
        return True

    @property
    def whole(self) -> bool:
        """Whether all blocks of the assignment are ready here."""
        return self._is_all(self.ready)

    def may_go_live(self, ready: AbstractSet[int]) -> bool:
        """Whether requests may come before the model is whole: all ranks have the embedding, and some block is missing.

        Requests shall be here before the first layer is.
        """
        return self.state is WorkerState.LOADING and 0 in ready and not self._is_all(ready)

    def give_back(self) -> None:
        """Note that what is loaded is being given back, and comes to serve no more."""
        self._gives_back = True

    def go_live(self) -> None:
        """Go from loading to live: requests are taken while blocks arrive."""
        self._advance(WorkerState.LIVE)

    def go_back(self) -> None:
        """Go from live back to loading, as when a pipeline breaks."""
        self._advance(WorkerState.LOADING)

    def may_serve(self, command: Serve) -> bool:
        """Whether this worker loads the instance, and has all of it."""
        held = self.assignment
        return (
            self.state is WorkerState.LOADING and self.whole and held is not None and held.instance == command.instance
        )

    def serve(self, command: Serve) -> None:
        """Go from loading or live to serving, once whole, or back from draining if the command is to `recall`. A
        command that is repeated changes nothing."""
        self._expect(command.instance)
        if command.recall:
            self._recalled = command.plan_id
        if self.state is WorkerState.SERVING:
            return
        if self.state is WorkerState.DRAINING and not command.recall:
            raise Refusal(409, f"cannot serve {command.instance}: it is draining")
        if self._gives_back:
            raise Refusal(409, f"cannot serve {command.instance}: it is being given back")
        if not self.whole:
            raise Refusal(409, f"cannot serve {command.instance}: {len(self.ready)} blocks are ready, not all")
        self._advance(WorkerState.SERVING)

    def drain(self, command: Drain) -> bool:
        """Go from serving to draining. Returns False for a command that is repeated, even after the worker has drained
        or was recalled."""
        if command.instance == self._drained:
            return False
        if command.plan_id is not None and command.plan_id == self._recalled:
            return False
        self._expect(command.instance)
        if self.state is WorkerState.DRAINING:
            return False
        self.leave()
        return True

    def change_role(self, instance: str, role: Role) -> None:
        """Give the instance another role, in whatever state it is."""
        self._expect(instance)
        if self.assignment is not None:
            self.assignment = replace(self.assignment, role=role)

    def leave(self) -> None:
        """Go from serving to draining without a command."""
        self._advance(WorkerState.DRAINING)

    def accepts_requests(self, model: str) -> bool:
        """Whether requests for this model are taken now."""
        takes = self.state in (WorkerState.LIVE, WorkerState.SERVING)
        return takes and self.assignment is not None and self.assignment.model == model

    def aborts(self, plan_id: str) -> bool:
        """Whether the end of this plan makes the worker spare: it loads for the plan, live or not."""
        loads = self.state in (WorkerState.LOADING, WorkerState.LIVE)
        return loads and self.assignment is not None and self.assignment.plan_id == plan_id

    def release(self) -> None:
        """Go from loading, live or draining to spare, and forget the parameters."""
        drained = self.assignment.instance if self.assignment and self.state is WorkerState.DRAINING else self._drained
        self._advance(WorkerState.SPARE)
        self._drained = drained
        self._gives_back = False
        self.assignment = None
        self.ready = set()

    def _is_all(self, ready: AbstractSet[int]) -> bool:
        return self.assignment is not None and len(ready) == len(self.assignment.manifest.blocks)

    def _expect(self, instance: str) -> None:
        held = None if self.assignment is None else self.assignment.instance
        if held != instance:
            raise Refusal(409, f"this worker holds {held or 'no instance'}, not {instance}")

    def _advance(self, state: WorkerState) -> None:
        try:
            self.state = MOVES.advance(self.state, state)
        except ValueError as error:
            raise Refusal(409, str(error)) from None

    def check_invariants(self) -> None:
        """Check that a spare worker has nothing and a serving one everything. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        if (self.state is WorkerState.SPARE) != (self.assignment is None):
            yield f"worker: {self.state} with {self.assignment and self.assignment.instance}"
        blocks = set() if self.assignment is None else {block.index for block in self.assignment.manifest.blocks}
        if not self.ready <= blocks:
            yield f"worker: blocks {sorted(self.ready - blocks)} are of nothing that it holds"
        if self.state in (WorkerState.SERVING, WorkerState.DRAINING) and not self.whole:
            yield f"worker: {self.state} with {len(self.ready)} blocks"
        if self.state is WorkerState.LIVE and 0 not in self.ready:
            yield f"worker: live with blocks {sorted(self.ready)}"


def check_load(command: Load) -> None:
    """Check a LOAD whatever state the worker is in. Raises Refusal 400, which names the field.

    Checksums aside, a manifest's blocks follow from its configuration.
    """
    manifest = command.manifest
    _check_ranks(command)
    wanted = manifest.config.num_hidden_layers + 2
    if len(manifest.blocks) != wanted:
        raise Refusal(400, f"manifest.blocks: {len(manifest.blocks)} of them, manifest.config makes {wanted}")
    layouts = shard_layouts(manifest.config, manifest.dtype, manifest.shard, manifest.shards, manifest.layout)
    for block, layout in zip(manifest.blocks, layouts, strict=True):
        if block != layout.block(block.checksum):
            raise Refusal(400, f"manifest.blocks: {block.name!r} is not block {layout.index} of manifest.config")
    longest = manifest.config.max_position_embeddings
    if command.max_model_len > longest:
        raise Refusal(400, f"max_model_len: {command.max_model_len} is more than the model's own {longest}")


def _check_ranks(command: Load) -> None:
    manifest, ranks = command.manifest, max(len(command.ranks), 1)
    try:
        check_shards(manifest.config, manifest.shards)
    except ValueError as error:
        raise Refusal(400, f"manifest.shards: {error}") from None
    if manifest.shards != ranks:
        raise Refusal(400, f"ranks: {ranks} of them, the manifest is for {manifest.shards}")
    if not command.rank == manifest.shard < ranks:
        raise Refusal(400, f"rank: {command.rank} of {ranks} cannot have shard {manifest.shard}")
