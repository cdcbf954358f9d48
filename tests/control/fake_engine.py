"""What a fake worker computes: requests, their tokens, and what it takes over from workers that are still loading."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from livescale.services.worker.instance.frames import TokenHistory
from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.messages.live import Help, RequestsMoved
from livescale.shared.messages.membership import EngineLoad
from livescale.shared.messages.requests import (
    Admit,
    AskRunning,
    Cancel,
    Replay,
    RequestLost,
    RequestsEnded,
    Running,
    RunningRequests,
    Submit,
    TokenFrame,
    Tokens,
)
from livescale.shared.subjects import (
    ENDED,
    MOVED,
    TOKENS,
)
from tests.control.fakes import (
    PREFILL_RATE,
    SLOTS,
    STEP_SECONDS,
)

if TYPE_CHECKING:
    from tests.control.fake_worker import FakeWorker


@dataclass
class Work:
    request: Submit
    prefill_left: float
    made: int = 0


class FakeEngine:
    """Requests of one fake worker: one token a step for each, after its prompt was prefilled; and those that it takes
    over from workers that are still loading."""

    def __init__(self, worker: "FakeWorker") -> None:
        self._worker = worker
        self.running: dict[str, Work] = {}
        self.admitted: list[Admit] = []
        self.cancelled: list[str] = []
        self.first_token_told = False
        self.helped: set[str] = set()
        self.named: dict[str, set[str]] = {}  # the targets to help, by plan
        self.helps = asyncio.Event()
        self.taken: list[str] = []  # requests that came from workers that loaded
        self.step = 0
        self.history = TokenHistory()
        self.work = asyncio.Event()

    def engine_load(self) -> EngineLoad:
        prefilling = [one for one in self.running.values() if one.prefill_left > 0]
        return EngineLoad(
            waiting_requests=len(prefilling),
            waiting_tokens=round(sum(one.prefill_left for one in prefilling)),
            running_requests=len(self.running) - len(prefilling),
            max_requests=SLOTS,
            kv_blocks_used=len(self.running),
            kv_blocks_total=64,
            kv_block_tokens=16,
            prefill_tokens_per_second=PREFILL_RATE if self.admitted else None,
        )

    async def admit(self, admit: Admit, context: Context) -> Ack:
        if not self._worker.lifecycle.accepts_requests(admit.request.model):
            raise Refusal(409, f"the worker is {self._worker.state}")
        if self._worker.faults.refuse_admissions > 0:
            self._worker.faults.refuse_admissions -= 1
            raise Refusal(429, "full", retry_after_ms=10)
        request = admit.request
        assert self._worker.order is not None
        if request.version not in (None, self._worker.order.manifest.version):
            raise Refusal(409, "this worker serves another version")
        if request.request_id in self.running:
            return Ack()
        self.admitted.append(admit)
        self.running[request.request_id] = Work(request, len(request.prompt) + len(request.generated))
        self.running[request.request_id].made = len(request.generated)
        self.work.set()
        self._worker.membership.changed()
        return Ack()

    async def replay(self, replay: Replay, context: Context) -> Ack:
        row = self.history.since(replay.request_id, replay.index)
        if row is None and replay.request_id not in self.running:
            raise Refusal(404, f"request {replay.request_id} has no token {replay.index} here")
        if row is not None:
            self.send_rows([row], replay.gateway)
        return Ack()

    async def tell_running(self, ask: AskRunning, context: Context) -> RunningRequests:
        requests = [one.request for one in self.running.values()]
        return RunningRequests(
            requests=[Running(request_id=r.request_id, gateway=r.gateway, tokens=r.max_tokens + 1) for r in requests]
        )

    def cancel(self, cancel: Cancel) -> None:
        self.cancelled.append(cancel.request_id)
        stopped = self.running.pop(cancel.request_id, None)
        if stopped is not None:
            row = Tokens(request_id=cancel.request_id, index=stopped.made, token_ids=[], finish_reason="cancelled")
            self.history.record(row)
            self.send_rows([row], stopped.request.gateway)
            self.ended([cancel.request_id])

    def give_back(self, reason: str) -> None:
        """Give back the requests of a live worker: other workers have to run these."""
        for one in self.running.values():
            lost = RequestLost(request_id=one.request.request_id, reason=reason)
            self._worker.bus.publish(TOKENS, lost, gateway=one.request.gateway)
        if self.running:
            self._worker.bus.publish(
                ENDED, RequestsEnded(worker=self._worker.id, request_ids=list(self.running)), worker=self._worker.id
            )
        self.running.clear()
        self.history.drop_running()

    async def help(self, help: Help, context: Context) -> Ack:
        self._worker.check_epoch(help.epoch)
        if (
            self._worker.state != "serving"
            or self._worker.order is None
            or self._worker.order.manifest.version != help.version
        ):
            raise Refusal(409, f"the worker is {self._worker.state}")
        self.helped -= self.named.pop(help.plan_id, set())
        self.named[help.plan_id] = {target.id for target in help.targets}
        self.helped |= self.named[help.plan_id]
        self.helps.set()
        self._worker.membership.changed()
        return Ack()

    def begin_to_help(self, target: str) -> None:
        self.helped.add(target)
        self.helps.set()

    async def pull(self) -> None:
        """While nothing here waits to be prefilled take what a live worker has not begun."""
        while True:
            await self.helps.wait()
            await asyncio.sleep(10 * STEP_SECONDS)
            if not self.helped:
                self.helps.clear()
            for id in sorted(self.helped):
                target = self._worker.fabric.get(id)
                if not isinstance(target, type(self._worker)) or not target.engine.may_be_helped:
                    self.helped.discard(id)
                    self._worker.membership.changed()
                elif target.is_stopped:
                    continue
                elif self._worker.state == "serving" and not any(one.prefill_left > 0 for one in self.running.values()):
                    self.take(target)

    @property
    def may_be_helped(self) -> bool:
        return self._worker.state in ("loading", "live") or self._worker.stages.shares

    def take(self, target: "FakeWorker") -> None:
        one = next(iter(target.engine.running.values()), None)
        if one is None or len(self.running) >= SLOTS or one.request.request_id in self.running:
            return
        id = one.request.request_id
        del target.engine.running[id]
        moved = RequestsMoved(worker=self._worker.id, previous=target.id, request_ids=[id])
        target.bus.publish(MOVED, moved, previous=target.id)
        self.taken.append(id)
        self.running[id] = one
        row = Tokens(request_id=id, index=one.made, token_ids=[])
        self.history.record(row)
        self.send_rows([row], one.request.gateway)
        self.work.set()
        self._worker.membership.changed()

    async def compute(self) -> None:
        while True:
            await self.work.wait()
            await asyncio.sleep(STEP_SECONDS)
            if self._worker.stages.leads and not self._worker.stages.is_whole():
                self._worker.stages.end("a stage is gone")
            if self._worker.state != "live" or self._worker.lifecycle.whole or self._worker.stages.leads:
                self.one_step()
            if not self.running:
                self.work.clear()

    def one_step(self) -> None:
        self.step += 1
        budget = PREFILL_RATE * STEP_SECONDS
        frames: dict[str, list[Tokens]] = {}
        done = []
        for one in list(self.running.values()):
            taken = min(budget, one.prefill_left)
            one.prefill_left, budget = one.prefill_left - taken, budget - taken
            if one.prefill_left > 0:
                continue
            one.made += 1
            last = one.made >= one.request.max_tokens
            row = Tokens(
                request_id=one.request.request_id,
                index=one.made - 1,
                token_ids=[one.made],
                finish_reason="length" if last else None,
            )
            frames.setdefault(one.request.gateway, []).append(row)
            if last:
                done.append(one.request.request_id)
        for gateway, rows in frames.items():
            self.send_rows(rows, gateway)
            for row in rows:
                self.history.record(row)
        if frames and not self.first_token_told:
            self.first_token_told = True
            self._worker.tell("first_token")
        for id in done:
            del self.running[id]
        if done:
            self.ended(done)

    def send_rows(self, rows: list[Tokens], gateway: str) -> None:
        version = None if self._worker.order is None else self._worker.order.manifest.version
        self._worker.bus.publish(
            TOKENS, TokenFrame(worker=self._worker.id, step=self.step, rows=rows, version=version), gateway=gateway
        )

    def ended(self, request_ids: list[str]) -> None:
        self._worker.bus.publish(
            ENDED, RequestsEnded(worker=self._worker.id, request_ids=request_ids), worker=self._worker.id
        )
        self._worker.membership.changed()
        self._worker.finish_draining()

    def forget(self) -> None:
        self.running.clear()
        self.history.drop_running()
        self.first_token_told = False
        self.helped.clear()
        self.named.clear()
