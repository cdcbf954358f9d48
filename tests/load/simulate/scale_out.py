"""A scale-out from one instance to four under load, while targets are live; one of a pair may be killed in it."""

import asyncio
from typing import Literal

import msgspec

from livescale.load.records import RequestRecord
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.event_log import LoggedEvent
from livescale.load.simulate.start import quiet, until, workers_in
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import Named
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import MANIFEST
from tests.load.simulate.clusters import CONFIG, asks, registered, settings, until_serving

Victim = Literal["nobody", "target", "source"]
ASKS = asks(80, rate=200.0, prompt=1_200, tokens=16)  # three more instances are needed at once, and load long enough


class Outcome(msgspec.Struct, frozen=True):
    """What came of a scale-out. `lost` was killed."""

    records: list[RequestRecord]
    events: list[LoggedEvent]
    digest: str
    version: str
    lost: str


def handed_off(cluster: VirtualCluster) -> list[RequestsMoved]:
    """Requests of which two workers ran some layers each."""
    events = [event for event in cluster.log.events if event.subject.endswith(".moved")]
    moves = [msgspec.msgpack.decode(event.data, type=RequestsMoved) for event in events]
    return [move for move in moves if 0 < move.layers < CONFIG.num_hidden_layers]


async def end(cluster: VirtualCluster, victim: Victim) -> str:
    """Wait until three targets were live and one handed a request over, and kill one of the pair."""
    live = set[str]()

    async def under_way() -> bool:
        live.update(await workers_in(cluster, "live"))
        return len(live) >= 3 and bool(handed_off(cluster))

    await until(under_way)
    if victim == "nobody":
        return ""
    move = handed_off(cluster)[-1]
    lost = move.previous if victim == "target" else move.worker
    await cluster.kill(lost)
    return lost


async def scale_out(victim: Victim, seed: int) -> Outcome:
    async with virtual_cluster(settings(6, seed)) as made:
        await registered(made, max_instances=4)
        replaying = asyncio.create_task(replay(made.gateway, "m", ASKS))
        lost = await end(made, victim)
        records = await replaying

        async def told() -> bool:
            deaths = [event for event in made.log.of("evt.lease") if b'"dead"' in event.data]
            return not lost or f"evt.lease.{lost}" in [event.subject for event in deaths]

        await until(told)
        await until_serving(made, 3 if lost else 4)
        manifest: Manifest = await made.operator.call(MANIFEST, Named(model="m"), timeout=5.0)
        return Outcome(records, made.log.events, made.log.digest(), manifest.version, lost)


def played(victim: Victim, seed: int = 1) -> Outcome:
    with quiet():
        return virtual_time.run(scale_out(victim, seed), limit_seconds=300)
