"""Instances of several workers (model parallelism): the ranks of tensor parallelism, and the stages of execution
pipelines (LambdaScale 4.3), by which workers that hold a model between them serve before any of them is whole.

The worker of rank 0, or of the first stage, leads: requests are its own, and so is the choice of what runs in each
step. It tells the other ranks of every step; what they then exchange goes through their process group. Every stage
keeps the KV of its layers in the KV blocks that the leader names. Batches go from stage to stage, each over a channel
of the link that only two neighbours know; what they are is said over the bus.
"""

from typing import Annotated

from msgspec import Meta

from livescale.shared.messages.membership import Address
from livescale.shared.messages.message import Count, Message, Name, Positive
from livescale.shared.messages.requests import HttpError, Sampling, TokenLogprobs
from livescale.shared.messages.transfers import Indexes, Node, Secret, Ticket

Port = Annotated[int, Meta(ge=0, le=65_535)]
MOST_USED = 64  # adapters, of which a leader says that they were used of late


class Stage(Message, frozen=True, kw_only=True):
    """A worker's part of a pipeline: the blocks `first` to `stop` - 1, in the model's order.

    Where the head is tied to the embedding, the worker that runs the last block needs block 0 as well.
    """

    node: Node
    first: Count
    stop: Positive


class Pipeline(Message, frozen=True, kw_only=True):
    """Planner -> each worker of a pipeline, the leader last: run these stages, which together are the whole model.

    Neighbours, which are never the same worker, prove themselves to each other by `secret`. Each worker has at least
    `kv_blocks` KV blocks. The leader is the first that is told to serve by itself. Its steps end then, and the workers
    that serve after it pull their parts of the requests that are left from it, without being told.
    """

    id: Name
    plan_id: Name
    model: Name
    version: Name
    stages: list[Stage]
    kv_blocks: Positive
    epoch: Count
    secret: Secret = b""

    @property
    def leader(self) -> Node:
        """The worker that runs the first stage and leads the pipeline."""
        return self.stages[0].node


class StagePiece(Message, frozen=True, kw_only=True):
    """Positions of a request that a stage runs, with what the last stage needs to choose the next token.

    `prompt` (each token once) and `generated` are the tokens so far, where the choice depends on them. Where the last
    stage has the prompt and the first `known` of those generated from earlier pieces, they are left out. It is told how
    likely the `following` tokens are, each after one of the first positions, and `top` of the likeliest.
    `adapter`: the version of the adapter that it uses.
    """

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
    prompt: list[Count] = []
    generated: list[Count] = []
    known: Count = 0
    following: list[Count] = []
    top: Count = 0
    adapter: Name | None = None


class StageFill(Message, frozen=True, kw_only=True):
    """Compute the KV of these positions in all layers, for `worker`, which takes these requests when the pipeline is
    over. It goes into the blocks where its stages have theirs. The pipeline has computed the positions before."""

    worker: Name
    pieces: list[StagePiece]


class KvSpan(Message, frozen=True, kw_only=True):
    """Positions `start` to `stop` - 1 of a request. Their KV lies in `blocks` blocks from `first_block` on."""

    first_block: Count
    blocks: Positive
    start: Count
    stop: Positive


class MoveKv(Message, frozen=True, kw_only=True):
    """The leader -> `worker`: get the KV of these positions, which every stage has computed, from the workers of other
    layers. `worker` -> each of them: send it.

    It goes into the same blocks. `number` is a part of the number of the channel between two workers. Refused with 409
    where the KV does not come, or where computing it is faster: then nothing of it comes any more.
    """

    pipeline: Name
    number: Positive
    worker: Name
    spans: list[KvSpan]


class StageAdapter(Message, frozen=True, kw_only=True):
    """The leader -> another worker of the pipeline: have this adapter in the engine. Answered once it is, refused with
    503 where it does not come.

    `used`: adapters that the pipeline's requests used of late, the last one last. They are evicted in this order.
    """

    pipeline: Name
    version: Name
    used: Annotated[list[Name], Meta(max_length=MOST_USED)] = []


class StageAdaptersHere(Message, frozen=True, kw_only=True):
    """All adapters that are in the engine now. The leader does not ask for them again; they go as others come."""

    versions: list[Name] = []


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

    `logprobs` are by place among the tokens, and `prompts`, of tokens of prompts, by place among the pieces. `withheld`
    are the places where no token was chosen, with the reason why the request fails; without one it only comes later.
    `codes` has one for each, as `Tokens` has. `unfilled`: the workers that did not do their fills.
    """

    pipeline: Name
    step: Positive
    tokens: list[Count] = []
    logprobs: list[tuple[Count, TokenLogprobs]] = []
    prompts: list[tuple[Count, list[TokenLogprobs]]] = []
    withheld: list[tuple[Count, str]] = []
    codes: list[HttpError] = []
    unfilled: list[Name] = []
    error: str | None = None


class PipelineOver(Message, frozen=True, kw_only=True):
    """The leader -> every stage: there are no more steps. Idempotent.

    The planner sends it to every stage, the leader included, if a member refused its stages, was lost, or would keep
    others waiting too long. The leader then gives its requests back, and every member goes on loading.
    """

    pipeline: Name
    reason: str


class AskMeeting(Message, frozen=True, kw_only=True):
    """A rank -> the leading one: where does this instance meet? Refused where the worker asked does not lead it.

    `address`: where `rank` is reached by workers that give it KV or take some. `blocks`: those that it has laid out.
    """

    instance: Name
    rank: Count = 0
    address: Address = b""
    blocks: Indexes = []


class Meeting(Message, frozen=True, kw_only=True):
    """Where the ranks of an instance find each other, and how many steps the others were told to take up to now."""

    address: Name
    port: Port
    told: Count = 0


class RankStep(Message, frozen=True, kw_only=True):
    """Rank 0 -> the others: run this batch, or one `layer` of it, or its blocks `first` to `stop` - 1.

    Steps count from 1, without gaps. Activations are not in it: the ranks get them from rank 0 as they run it.
    """

    instance: Name
    step: Positive
    batch: bytes
    layer: Count | None = None
    first: Count | None = None
    stop: Count = 0


class RankGive(Message, frozen=True, kw_only=True):
    """Rank 0 of a target -> the others, as one of its steps: a request belongs to a source from now on.

    Send the KV of its first `layers` layers, in `blocks` blocks, over the channel of this ticket. The node `to` is the
    source's rank with the same shard.
    """

    instance: Name
    step: Positive
    first_block: Count
    blocks: Positive
    layers: Positive
    to: Node
    ticket: Ticket
    secret: Secret = b""


class RankTake(Message, frozen=True, kw_only=True):
    """Rank 0 of a source -> the others: receive KV of a request. Answered once it is here, refused where it is lost.

    The KV was asked for after the step `after`; a later step imports it.
    """

    instance: Name
    request_id: Name
    sender: Node
    ticket: Ticket
    size_bytes: Count
    after: Count
    secret: Secret = b""


class RankLeft(Message, frozen=True, kw_only=True):
    """Another rank -> rank 0: this rank runs no more steps of the instance, for this reason."""

    instance: Name
    rank: Positive
    reason: str


class RankKeep(Message, frozen=True, kw_only=True):
    """Rank 0 of a source -> the others, as one of its steps: of all KV that was to be received, only that of these
    requests is still wanted."""

    instance: Name
    step: Positive
    requests: list[Name]


class RankAdapter(Message, frozen=True, kw_only=True):
    """Rank 0 -> the others: have this adapter in the engine. Answered once it is, refused where it does not come.

    It was asked for after the step `after`.
    """

    instance: Name
    version: Name
    after: Count


class RankForget(Message, frozen=True, kw_only=True):
    """Rank 0 -> the others, as one of its steps: no later step uses this adapter, until it is asked for again."""

    instance: Name
    step: Positive
    version: Name


Told = RankStep | RankGive | RankKeep | RankForget
