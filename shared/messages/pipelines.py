"""Execution pipelines (LambdaScale 4.3): workers that hold a model between them serve before any of them is whole.

The worker of the first stage leads: requests are its own, and so is the choice of what runs in each step. Every stage
keeps the KV of its layers in the KV blocks that the leader names. Batches go from stage to stage, each over a channel
of the link that only two neighbours know; what they are is said over the bus.
"""

from livescale.shared.messages.message import Count, Message, Name, Positive
from livescale.shared.messages.requests import Sampling
from livescale.shared.messages.transfers import Node, Secret


class Stage(Message, frozen=True, kw_only=True):
    """A worker runs the blocks `first` .. `stop` - 1, in the model's order.

    Where the head is tied to the embedding, who runs the last block needs block 0 as well.
    """

    node: Node
    first: Count
    stop: Positive


class Pipeline(Message, frozen=True, kw_only=True):
    """Planner -> each worker of it, the leader last: run these stages, which together are the whole model.

    `secret` proves neighbours to each other, which are never the same worker. `kv_blocks`: how many each of them has at
    least. Who leads is told to serve first: its steps end, and whoever serves after it pulls its part of the requests
    that are left from the leader, without being told.
    """

    id: Name
    plan_id: Name
    model: Name
    version: Name
    stages: list[Stage]
    kv_blocks: Positive
    epoch: Count
    secret: Secret = b""


class StagePiece(Message, frozen=True, kw_only=True):
    """Positions of a request, as the worker's `batch.Piece` has them. Of its draw only what the last stage needs."""

    request_id: Name
    tokens: list[Count]
    start: Count
    first_block: Count
    blocks: Positive
    decode: bool
    sampling: Sampling | None = None
    index: Count = 0
    forbidden: list[Count] = []
    stops: list[Count] = []


class StageFill(Message, frozen=True, kw_only=True):
    """For `worker`, whose requests these are to be once the pipeline is over: compute the KV of these positions in all
    layers, in the blocks where its stages have theirs. A pipeline that runs on has computed them before."""

    worker: Name
    pieces: list[StagePiece]


class KvSpan(Message, frozen=True, kw_only=True):
    """Positions `start` .. `stop` - 1 of a request whose KV lies in so many blocks from `first_block` on."""

    first_block: Count
    blocks: Positive
    start: Count
    stop: Positive


class MoveKv(Message, frozen=True, kw_only=True):
    """The leader -> `worker`: have KV of these positions, which every stage has computed, come from all that run other
    layers. `worker` -> each of them: send it.

    It goes into the same blocks. Numbers are those of parts of the channels between two workers. Refused with 409 where
    it does not come, or computing it is faster: then nothing of it comes any more.
    """

    pipeline: Name
    number: Positive
    worker: Name
    spans: list[KvSpan]


class StageBatch(Message, frozen=True, kw_only=True):
    """A stage -> the next: run these rows; their activation comes over the link. Steps count from 1, with no gap.

    `stage`: the next one's place among the stages. A KV block has `block_tokens` tokens. `fills` are done by the first
    stage of each worker that they are for, if it is whole, before its rows; the others go on.
    """

    pipeline: Name
    stage: Count
    step: Positive
    block_tokens: Positive
    pieces: list[StagePiece]
    activation_bytes: Count
    fills: list[StageFill] = []


class StageDone(Message, frozen=True, kw_only=True):
    """A stage -> the leader: the tokens of a step's draws, from the last; or why a step cannot be run (`error`).

    `unfilled`: the workers that did not do their fills.
    """

    pipeline: Name
    step: Positive
    tokens: list[Count] = []
    unfilled: list[Name] = []
    error: str | None = None


class PipelineOver(Message, frozen=True, kw_only=True):
    """The leader -> every stage: no step will come any more. Idempotent.

    Also planner -> every stage, the leader included, where not all of them took their part, or one is lost, or they
    would wait for another too long: the leader gives its requests back, and each goes on loading.
    """

    pipeline: Name
    reason: str
