"""The rest of the system as the gateway sees it: one actor that answers for registry, router, worker and planner."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from livescale.shared.bus.contract import Ack, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.membership import AskMetrics, Join, Joined, MetricsText
from livescale.shared.messages.registry import AskModels, AskSnapshot, ModelEntry, ModelList, Named, Register, Snapshot
from livescale.shared.messages.requests import (
    Cancel,
    FinishReason,
    Replay,
    RequestLost,
    Submit,
    Submitted,
    TokenFrame,
    TokenLogprobs,
    Tokens,
)
from livescale.shared.messages.scaling import AskDecisions, Decision, Decisions, RoleSet, Scale, ScaleAccepted, SetRole
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import (
    CANCEL,
    CANCEL_WORK,
    DECISIONS,
    JOIN,
    METRICS,
    MODELS,
    REGISTER,
    REMOVE,
    REPLAY,
    ROLE,
    SCALE,
    SNAPSHOT,
    SUBMIT,
    TOKENS,
)
from tests.gateway.reports import CONTEXT_TOKENS, WORKER, entry, member, worker

INFO = ServiceInfo("cluster", "cluster", "the rest")
WORKER_METRICS = """# HELP vllm:num_requests_running Requests that run.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="worker-1",model_name="tiny"} 3.0
"""


class Cluster:
    """Generates `output` over and over, one token a frame; the knobs below make trouble.

    `before` is awaited before each token with the request and the token's position; what it raises ends the request.
    """

    def __init__(self, broker: LocalBroker, checkpoint: Path) -> None:
        self.bus = broker.connect()
        self.output: list[int] = [65, 66, 67]
        self.submitted: list[Submit] = []
        self.contexts: list[Context] = []
        self.known: list[str] = []  # submitted again while it ran
        self.forgetful = False
        self.cancelled: list[str] = []
        self.stopped: list[str] = []  # told to the worker itself
        self.replayed: list[Replay] = []
        self.scaled: list[Scale] = []
        self.refusal: Refusal | None = None
        self.refused = 0
        self.answers_late = False
        self.hanging = False
        self.replay_refusal: Refusal | None = None
        self.before_replay: Callable[[], Awaitable[None]] = nothing
        self.before: Callable[[Submit, int], asyncio.Future[None] | None] = lambda request, position: None
        self.lose_frame: Callable[[int], bool] = lambda position: False
        self.lost_at: dict[int, int] = {}  # position by attempt, from 1
        self.finish: FinishReason | None = None
        self.resends = True
        self.worker = WORKER
        self.version: str | None = None
        self.tokens_per_frame = 1
        self.members = [member("router", "router-0"), member("worker", WORKER)]
        self.models = [entry(checkpoint)]
        self.pooled: Callable[[Submit], list[TokenLogprobs]] = lambda request: []
        self._sent: dict[str, list[Tokens]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def _role(self, message: SetRole, context: Context) -> RoleSet:
        if message.worker != WORKER:
            raise Refusal(404, f"no worker {message.worker!r} is alive")
        return RoleSet(worker=WORKER, instance="instance-1", role=message.role, before="colocated")

    async def start(self) -> None:
        await self.take_office()
        endpoints = [
            Endpoint(MODELS, self._models),
            Endpoint(SNAPSHOT, self._snapshot),
            Endpoint(JOIN, self._join),
            Endpoint(REGISTER, self._register),
            Endpoint(REMOVE, self._remove),
            Endpoint(SCALE, self._scale),
            Endpoint(ROLE, self._role),
            Endpoint(DECISIONS, self._decisions),
            Endpoint(REPLAY, self._replay, {"id": WORKER}),
            Endpoint(METRICS, self._metrics, {"id": WORKER}),
        ]
        await self.bus.serve(INFO, endpoints)
        cancels = await self.bus.subscribe(CANCEL)

        async def follow_cancels() -> None:
            async for received in cancels:
                self._cancel(received.message)

        async def follow_stops() -> None:
            async for received in await self.bus.subscribe(CANCEL_WORK, id=WORKER):
                self.stopped.append(received.message.request_id)

        self._running["cancels"] = asyncio.create_task(follow_cancels())
        self._running["stops"] = asyncio.create_task(follow_stops())

    async def stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self.bus.close()

    async def take_office(self) -> None:
        """Become the active router."""
        self.leave_office = await self.bus.serve(INFO, [Endpoint(SUBMIT, self._submit)])

    def made(self) -> int:
        """How many tokens were generated, of all requests."""
        return sum(len(row.token_ids) for rows in self._sent.values() for row in rows)

    def hang_before(self, position: int) -> "asyncio.Future[None]":
        """Requests that are not resumed stop there until the future has a result."""
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def before(request: Submit, at: int) -> "asyncio.Future[None] | None":
            if request.generated or at != position:
                return None
            self.hanging = True
            return released

        self.before = before
        return released

    async def _submit(self, request: Submit, context: Context) -> Submitted:
        if self.refusal is not None:
            self.refused += 1
            raise self.refusal
        if request.request_id in self._running and not self.forgetful:
            self.known.append(request.request_id)
            return Submitted(ahead=0)
        self.submitted.append(request)
        self.contexts.append(context)
        self._running[request.request_id] = asyncio.create_task(self._generate(request, len(self.submitted)))
        if self.answers_late:
            raise Refusal(504, "no answer came in time")
        return Submitted(ahead=0)

    async def _generate(self, request: Submit, attempt: int) -> None:
        await asyncio.sleep(0)  # the answer to SUBMIT goes first
        position = len(request.generated)
        while position < request.max_tokens:
            wait = self.before(request, position)
            if wait is not None:
                await wait
            if self.lost_at.get(attempt) == position:
                lost = RequestLost(request_id=request.request_id, reason="worker-1 is dead")
                self.bus.publish(TOKENS, lost, gateway=request.gateway)
                return
            end = min(position + self.tokens_per_frame, request.max_tokens)
            ids = [self.output[one % len(self.output)] for one in range(position, end)]
            stop = next((i for i, one in enumerate(ids) if one in request.stop_token_ids), None)
            if stop is not None:
                ids = ids[: stop + 1]
            last: FinishReason = "stop" if stop is not None else "length"
            over = stop is not None or end == request.max_tokens
            row = Tokens(
                request_id=request.request_id,
                index=position,
                token_ids=ids,
                logprobs=self.pooled(request) or made_up_logprobs(ids, request.sampling.logprobs),
                prompt_logprobs=[] if position else made_up_prompt_logprobs(request),
                finish_reason=(self.finish or last) if over else None,
                error="kernel exploded" if over and self.finish == "error" else None,
                cached_tokens=2,
            )
            self._send(request.gateway, row)
            if over:
                return
            position = end
            await asyncio.sleep(0)

    def _send(self, gateway: str, row: Tokens) -> None:
        self._sent.setdefault(row.request_id, []).append(row)
        if not self.lose_frame(row.index):
            frame = TokenFrame(worker=self.worker, step=row.index, rows=[row], version=self.version)
            self.bus.publish(TOKENS, frame, gateway=gateway)

    def _cancel(self, message: Cancel) -> None:
        if message.request_id not in self.cancelled:
            self.cancelled.append(message.request_id)
        if message.request_id in self._running:
            self._running[message.request_id].cancel()

    async def _replay(self, message: Replay, context: Context) -> Ack:
        self.replayed.append(message)
        await self.before_replay()
        if self.replay_refusal is not None:
            raise self.replay_refusal
        if not self.resends:
            return Ack()
        rows = [row for row in self._sent[message.request_id] if row.index + len(row.token_ids) > message.index]
        self.bus.publish(TOKENS, TokenFrame(worker=WORKER, step=0, rows=rows), gateway=message.gateway)
        return Ack()

    async def _models(self, message: AskModels, context: Context) -> ModelList:
        return ModelList(models=self.models)

    async def _snapshot(self, message: AskSnapshot, context: Context) -> Snapshot:
        return Snapshot(members=self.members, workers=[worker()], models=self.models)

    async def _join(self, message: Join, context: Context) -> Joined:
        return Joined(epoch=1)

    async def _register(self, message: Register, context: Context) -> ModelEntry:
        if "missing" in message.spec.path:
            raise Refusal(422, f"{message.spec.path}: no such directory")
        entry = ModelEntry(spec=message.spec, state="reading", max_model_len=CONTEXT_TOKENS)
        self.models.append(entry if message.spec.base is None else replace(entry, state="ready", version="v1"))
        return self.models[-1]

    async def _remove(self, message: Named, context: Context) -> ModelEntry:
        self.models = [replace(one, state="removing") if one.spec.name == message.model else one for one in self.models]
        found = [one for one in self.models if one.spec.name == message.model]
        if not found:
            raise Refusal(404, f"model {message.model!r} is not registered")
        self.models = [one for one in self.models if one.spec.base is None or one is not found[0]]
        return found[0]

    async def _scale(self, message: Scale, context: Context) -> ScaleAccepted:
        if all(entry.spec.name != message.model for entry in self.models):
            raise Refusal(404, f"no model {message.model}")
        self.scaled.append(message)
        return ScaleAccepted(scale_id="scale-1", actual=1, target=message.instances, reason="asked by hand")

    async def _decisions(self, message: AskDecisions, context: Context) -> Decisions:
        decision = Decision(
            id="decision-1",
            model=message.model or "tiny",
            at=1.0,
            action="hold",
            current=1,
            target=1,
            rule="within-bounds",
            reason="load is within bounds",
            by="monitor",
            inputs={"waiting": None},
        )
        return Decisions(decisions=[decision] * min(message.limit, 3))

    async def _metrics(self, message: AskMetrics, context: Context) -> MetricsText:
        return MetricsText(text=WORKER_METRICS)


async def nothing() -> None: ...


def made_up_prompt_logprobs(request: Submit) -> list[TokenLogprobs]:
    asked = request.prompt_logprobs
    return [] if asked is None else [replace(one, rank=9) for one in made_up_logprobs(request.prompt[1:], asked.top)]


def made_up_logprobs(token_ids: list[int], count: int | None) -> list[TokenLogprobs]:
    """Each token's own is -id / 100; the likeliest is always token 66."""
    if count is None:
        return []
    return [TokenLogprobs(-id / 100, [(66 + rank, -rank / 10) for rank in range(count)]) for id in token_ids]


@asynccontextmanager
async def running_cluster(broker: LocalBroker, checkpoint: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(broker, checkpoint)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
