"""Every subject of the system, tied to its message types. The bus adds the prefix `livescale.<namespace>.`."""

from livescale.shared.bus.contract import EVENTS as EVENTS
from livescale.shared.bus.contract import Ack, Call, Topic
from livescale.shared.messages.disaggregation import ChangeRole, HandOver, ReleaseKv, Reserve, Reserved, TakeOver
from livescale.shared.messages.live import Help, Pull, Pulled, RequestsMoved, Took, Withdraw
from livescale.shared.messages.membership import (
    AskMetrics,
    Join,
    Joined,
    LeaseChanged,
    Leave,
    MetricsText,
    Report,
    Stale,
)
from livescale.shared.messages.model_parallel import (
    AskMeeting,
    Meeting,
    MoveKv,
    Pipeline,
    PipelineOver,
    RankAdapter,
    RankLeft,
    RankTake,
    StageAdapter,
    StageAdaptersHere,
    StageBatch,
    StageDone,
    Told,
)
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import (
    AdapterContent,
    AskAdapter,
    AskIncidents,
    AskModels,
    AskSnapshot,
    CheckModel,
    FetchModel,
    IncidentList,
    ModelChecked,
    ModelEntry,
    ModelList,
    ModelRead,
    Named,
    ProcessEnded,
    ReadModel,
    Register,
    ReleaseModel,
    Snapshot,
    WasAway,
)
from livescale.shared.messages.requests import (
    Admit,
    AskRunning,
    AskVocabulary,
    Cancel,
    Replay,
    RequestLost,
    RequestsEnded,
    RunningRequests,
    Submit,
    Submitted,
    TokenFrame,
    VocabularyPart,
)
from livescale.shared.messages.scaling import (
    AskDecisions,
    AskScales,
    Decision,
    Decisions,
    RoleSet,
    Scale,
    ScaleAccepted,
    ScaleRecord,
    ScaleRecords,
    SetRole,
)
from livescale.shared.messages.transfers import (
    Abort,
    BlockReady,
    Drain,
    Greet,
    InstanceServing,
    Load,
    Send,
    Serve,
    Transfer,
)

# All that listen hear it: only the router in office does, and one that was stopped must not swallow its share.
SUBMIT: Call[Submit, Submitted] = Call("svc.router.submit", Submit, Submitted, doc="serve a request")
# Services, any one of which answers.
JOIN: Call[Join, Joined] = Call("svc.registry.join", Join, Joined, queue=True, doc="become a member, get an epoch")
SNAPSHOT: Call[AskSnapshot, Snapshot] = Call(
    "svc.registry.snapshot", AskSnapshot, Snapshot, queue=True, doc="members, workers, hosts, models"
)
MODELS: Call[AskModels, ModelList] = Call(
    "svc.registry.models", AskModels, ModelList, queue=True, doc="registered models"
)
INCIDENTS: Call[AskIncidents, IncidentList] = Call(
    "svc.registry.incidents", AskIncidents, IncidentList, queue=True, doc="deaths, restarts and stalls of late"
)
REGISTER: Call[Register, ModelEntry] = Call(
    "svc.registry.register", Register, ModelEntry, queue=True, doc="register a model"
)
ADAPTER: Call[AskAdapter, AdapterContent] = Call(
    "svc.registry.adapter", AskAdapter, AdapterContent, queue=True, doc="an adapter by its version"
)
MANIFEST: Call[Named, Manifest] = Call(
    "svc.registry.manifest", Named, Manifest, queue=True, doc="the manifest of a model that is ready"
)
REMOVE: Call[Named, ModelEntry] = Call(
    "svc.registry.remove", Named, ModelEntry, queue=True, doc="take a model out of service"
)
KEEP: Call[Named, Ack] = Call(
    "svc.registry.keep", Named, Ack, queue=True, doc="have a copy on a host, as the last instance is to be given back"
)
SCALE: Call[Scale, ScaleAccepted] = Call(
    "svc.planner.scale", Scale, ScaleAccepted, queue=True, doc="have this many instances of a model"
)
SCALES: Call[AskScales, ScaleRecords] = Call(
    "svc.planner.scales", AskScales, ScaleRecords, queue=True, doc="records of past and running scales"
)
ROLE: Call[SetRole, RoleSet] = Call(
    "svc.planner.role", SetRole, RoleSet, queue=True, doc="give an instance another role"
)
DECISIONS: Call[AskDecisions, Decisions] = Call(
    "svc.monitor.decisions", AskDecisions, Decisions, queue=True, doc="the last decisions, holds included"
)
VOCABULARY: Call[AskVocabulary, VocabularyPart] = Call(
    "svc.gateway.vocabulary", AskVocabulary, VocabularyPart, queue=True, doc="a part of a model's vocabulary"
)

# One process, by id.
METRICS: Call[AskMetrics, MetricsText] = Call("proc.{id}.metrics", AskMetrics, MetricsText, doc="Prometheus text")
ADMIT: Call[Admit, Ack] = Call("worker.{id}.admit", Admit, Ack, doc="take this request")
RUNNING: Call[AskRunning, RunningRequests] = Call(
    "worker.{id}.running", AskRunning, RunningRequests, doc="requests this worker has"
)
REPLAY: Call[Replay, Ack] = Call("worker.{id}.replay", Replay, Ack, doc="send tokens again")
LOAD: Call[Load, Ack] = Call("worker.{id}.load", Load, Ack, doc="receive parameters")
SERVE: Call[Serve, Ack] = Call("worker.{id}.serve", Serve, Ack, doc="take requests")
DRAIN: Call[Drain, Ack] = Call("worker.{id}.drain", Drain, Ack, doc="finish, then be spare")
HELP: Call[Help, Ack] = Call("worker.{id}.help", Help, Ack, doc="take requests over from workers that load")
PULL: Call[Pull, Pulled] = Call(
    "worker.{id}.pull", Pull, Pulled, doc="give the earliest request to a source that has nothing to do"
)
TOOK: Call[Took, Ack] = Call("worker.{id}.took", Took, Ack, doc="a request that was pulled has arrived")
MEETING: Call[AskMeeting, Meeting] = Call(
    "worker.{id}.meeting", AskMeeting, Meeting, doc="where the ranks of an instance meet"
)
RANK_TAKE: Call[RankTake, Ack] = Call("worker.{id}.take", RankTake, Ack, doc="receive a rank's part of a request's KV")
RANK_LEFT: Call[RankLeft, Ack] = Call("worker.{id}.left", RankLeft, Ack, doc="a rank runs no more steps")
RANK_ADAPTER: Call[RankAdapter, Ack] = Call("worker.{id}.adapter", RankAdapter, Ack, doc="bring an adapter to a rank")
PIPELINE: Call[Pipeline, Ack] = Call("worker.{id}.pipeline", Pipeline, Ack, doc="run a stage of an execution pipeline")
STAGE_ADAPTER: Call[StageAdapter, StageAdaptersHere] = Call(
    "worker.{id}.stage-adapter", StageAdapter, StageAdaptersHere, doc="bring an adapter to a stage of a pipeline"
)
MOVE_KV: Call[MoveKv, Ack] = Call("worker.{id}.move-kv", MoveKv, Ack, doc="get KV from the others of a pipeline")
GIVE_KV: Call[MoveKv, Ack] = Call("worker.{id}.give-kv", MoveKv, Ack, doc="send KV to another of a pipeline")
CHANGE_ROLE: Call[ChangeRole, Ack] = Call("worker.{id}.role", ChangeRole, Ack, doc="prefer other work")
RESERVE: Call[Reserve, Reserved] = Call(
    "worker.{id}.reserve", Reserve, Reserved, doc="keep KV blocks for a request that another worker prefills"
)
TAKE_OVER: Call[TakeOver, Ack] = Call("worker.{id}.take-over", TakeOver, Ack, doc="decode a request that was prefilled")
RELEASE_KV: Call[ReleaseKv, Ack] = Call("worker.{id}.release-kv", ReleaseKv, Ack, doc="keep KV blocks no longer")
HAND_OVER: Call[HandOver, Ack] = Call(
    "worker.{id}.hand-over", HandOver, Ack, doc="have another worker decode a request"
)
GREET: Call[Greet, Ack] = Call("worker.{id}.greet", Greet, Ack, doc="open a way to a worker that has joined")
# Workers and hosts alike hold and send parameters.
SEND: Call[Send, Ack] = Call("node.{id}.send", Send, Ack, doc="send parameters")
ABORT: Call[Abort, Ack] = Call("node.{id}.abort", Abort, Ack, doc="end a plan")
CHECK_MODEL: Call[CheckModel, ModelChecked] = Call(
    "host.{id}.check", CheckModel, ModelChecked, doc="check a checkpoint"
)
FETCH_MODEL: Call[FetchModel, Ack] = Call("host.{id}.fetch", FetchModel, Ack, doc="receive a model into memory")
RELEASE_MODEL: Call[ReleaseModel, Ack] = Call("host.{id}.release", ReleaseModel, Ack, doc="give memory back")
READ_MODEL: Call[ReadModel, ModelChecked] = Call(
    "host.{id}.read", ReadModel, ModelChecked, doc="check a checkpoint and read it into memory"
)

# One-way.
CANCEL: Topic[Cancel] = Topic("svc.router.cancel", Cancel)
CANCEL_WORK: Topic[Cancel] = Topic("worker.{id}.cancel", Cancel)
WITHDRAW: Topic[Withdraw] = Topic("worker.{id}.withdraw", Withdraw)
STAGE_BATCH: Topic[StageBatch] = Topic("worker.{id}.stage", StageBatch)
STAGE_DONE: Topic[StageDone] = Topic("worker.{id}.staged", StageDone)
PIPELINE_OVER: Topic[PipelineOver] = Topic("worker.{id}.over", PipelineOver)
RANK_STEP: Topic[Told] = Topic("worker.{id}.step", Told)
TOKENS: Topic[TokenFrame | RequestLost] = Topic("tok.{gateway}", TokenFrame | RequestLost)
ENDED: Topic[RequestsEnded] = Topic("req.{worker}.ended", RequestsEnded)
MOVED: Topic[RequestsMoved] = Topic("req.{previous}.moved", RequestsMoved)
HEARTBEAT: Topic[Report] = Topic("hb.{service}.{id}", Report, json=True)
# What workers need of LEASE. All leases are too many for all of them: each join would be told to each.
DEATH: Topic[LeaseChanged] = Topic("dead.{service}.{id}", LeaseChanged, json=True)
LEAVE: Topic[Leave] = Topic("leave.{service}.{id}", Leave)
AWAY: Topic[WasAway] = Topic("away.{service}.{id}", WasAway)
STALE: Topic[Stale] = Topic("proc.{id}.stale", Stale)

# Events: for people, for JetStream, and for processes that follow a scale.
LEASE: Topic[LeaseChanged] = Topic("evt.lease.{id}", LeaseChanged, json=True)
PROCESS: Topic[ProcessEnded] = Topic("evt.process.{id}", ProcessEnded, json=True)
DECISION: Topic[Decision] = Topic("evt.decision.{model}", Decision, json=True)
PLAN: Topic[ScaleRecord] = Topic("evt.plan.{id}", ScaleRecord, json=True)
TRANSFER: Topic[Transfer] = Topic("evt.transfer.{plan}", Transfer, json=True)
BLOCK: Topic[BlockReady] = Topic("evt.layer.{worker}", BlockReady, json=True)
INSTANCE: Topic[InstanceServing] = Topic("evt.instance.{instance}", InstanceServing, json=True)
MODEL_READ: Topic[ModelRead] = Topic("evt.model.{host}", ModelRead, json=True)
