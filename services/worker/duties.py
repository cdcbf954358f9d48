"""Whom a worker serves with what it holds: alone, live while it loads, or with others in a pipeline."""

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import suppress

from livescale.services.worker.instance import HeldInstance
from livescale.services.worker.lifecycle import WorkerState
from livescale.services.worker.live.parts import Parts
from livescale.services.worker.live.role import LiveRole, goes_live
from livescale.services.worker.loading import Loading
from livescale.services.worker.pipeline.member import PipelineMember
from livescale.shared.bus.contract import Context, Refusal
from livescale.shared.messages.live import Help, Pull, Pulled, Took
from livescale.shared.messages.message import Ack
from livescale.shared.messages.pipelines import MoveKv, Pipeline
from livescale.shared.messages.transfers import Serve

FETCH_SECONDS = 0.5  # within which a pipeline's requests are fetched before there are others


class Duties:
    """Commands of the planner for requests, and what other workers want of those that are here."""

    def __init__(self, parts: Parts, instance: HeldInstance) -> None:
        self.live = LiveRole(parts, lambda: instance.tell("first_layer"))
        self.pipelines = PipelineMember(parts, instance)
        self._parts = parts
        self._instance = instance

    @property
    def live_layers(self) -> int:
        """That this worker runs although others are missing."""
        return self.live.layers or self.pipelines.layers

    @property
    def live_waiting(self) -> int:
        """Requests that wait here for layers, or for a place in a batch of the pipeline that this worker leads."""
        scheduler = self._parts.serving.scheduler
        if self.pipelines.leads and scheduler is not None:
            return scheduler.waiting
        return self.live.waiting

    async def serve(self, command: Serve, context: Context) -> Ack:
        instance, lifecycle = self._instance, self._instance.lifecycle
        if lifecycle.whole and lifecycle.state is WorkerState.LOADING:
            await self.pipelines.leave()
            await self._fetch(command)
        elif lifecycle.whole and lifecycle.state is WorkerState.LIVE:
            await self.pipelines.fill()
        lifecycle = instance.lifecycle  # it may have been fenced meanwhile
        before, loading = lifecycle.state, instance.loading
        lifecycle.serve(command)
        if before is WorkerState.LOADING and loading is not None:
            self.live.missed()
            if self._parts.serving.scheduler is None and loading.command.rank == 0:
                instance.open(loading, whole=True)
        if before is WorkerState.LIVE:
            self.pipelines.switch()
        if before is not WorkerState.SERVING:
            instance.tell("serving")
            instance.changed()
        return Ack()

    async def help(self, command: Help, context: Context) -> Ack:
        loading, state = self._instance.loading, self._instance.lifecycle.state
        if loading is None or state is not WorkerState.SERVING or loading.manifest.version != command.version:
            raise Refusal(409, f"version: {command.version} is not served here, this worker is {state}")
        self.live.source.help(command, loading.manifest)
        self._instance.changed()
        return Ack()

    async def pipeline(self, command: Pipeline, context: Context) -> Ack:
        loading, lifecycle = self._instance.loading, self._instance.lifecycle
        if loading is None or not lifecycle.aborts(command.plan_id):
            raise Refusal(409, f"plan_id: this worker does not load for {command.plan_id}")
        self.pipelines.form(command, loading)
        self._instance.changed()
        return Ack()

    async def move_kv(self, order: MoveKv, context: Context) -> Ack:
        await self.pipelines.move_kv(order)
        return Ack()

    async def give_kv(self, order: MoveKv, context: Context) -> Ack:
        self.pipelines.give_kv(order)
        return Ack()

    async def pull(self, command: Pull, context: Context) -> Pulled:
        """Whoever helps has nothing to prefill."""
        shares = self.pipelines.shares
        return await self.live.pull(command) if shares is None else shares.pull(command)

    async def took(self, command: Took, context: Context) -> Ack:
        """Whoever pulled has what it was given, or does not want it."""
        shares = self.pipelines.shares
        if shares is None:
            self.live.took(command)
        else:
            shares.took(command)
        return Ack()

    def lost(self, worker: str) -> None:
        """The registry has declared it dead."""
        self.live.lost(worker)
        self.pipelines.lost(worker)

    def blocks_ready(self, ready: AbstractSet[int], loading: Loading) -> None:
        """Of what is loaded all ranks have these, which are some more."""
        if goes_live(loading.command) and self._instance.lifecycle.may_go_live(ready):
            self.live.begin(loading.command, self._instance.go_live(loading), ready)
        else:
            self.live.blocks_ready(ready)

    async def end(self, reason: str) -> None:
        """Nothing that is here is this worker's own any more, or there is nothing."""
        await self.pipelines.end(reason)
        await self.live.end(reason)

    async def _fetch(self, command: Serve) -> None:
        """Who led the pipeline that this worker was part of has requests for it: these come before any that the router
        has, as their clients wait already."""
        instance, serving = self._instance, self._parts.serving
        leader, self.pipelines.led_by = self.pipelines.led_by, None
        loading, lifecycle = instance.loading, instance.lifecycle
        if leader is None or loading is None or not lifecycle.may_serve(command):
            return
        scheduler = instance.open(loading, whole=True)
        manifest = loading.manifest
        help = Help(
            plan_id=command.plan_id,
            model=loading.command.model,
            version=manifest.version,
            targets=[leader],
            epoch=command.epoch,
        )
        self.live.source.help(help, manifest)
        with suppress(TimeoutError):
            async with asyncio.timeout(FETCH_SECONDS):
                while leader.id in self.live.source.helping and scheduler.is_empty:
                    await serving.changes.wait()
