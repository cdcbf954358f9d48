"""What the rank that leads an instance tells the others, and what it knows of them."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet

from livescale.services.worker.engine.contract import UNAVAILABLE, AdapterUnavailable, LayerwiseRun
from livescale.services.worker.instance.context import Channel
from livescale.services.worker.scheduling.batch import Batch, ScheduledChunk
from livescale.services.worker.tensor_parallel.wire import encode_batch
from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.links.contract import LinkError
from livescale.shared.messages.model_parallel import (
    AskMeeting,
    RankAdapter,
    RankForget,
    RankGive,
    RankKeep,
    RankStep,
    RankTake,
)
from livescale.shared.messages.transfers import Node
from livescale.shared.runtime.waiting import together
from livescale.shared.subjects import RANK_ADAPTER, RANK_STEP, RANK_TAKE

KV_SECONDS = 30.0  # within which the others have their part of a request's KV
ADAPTER_SECONDS = 5.0  # after which they are asked for an adapter again, as the call or its answer may be lost
BRING_SECONDS = 35.0  # within which they have it, or have said why not
RETRY_SECONDS = 0.2
LEFT = 409  # the code of the refusal by which a worker says that it is no rank of the instance


class GroupLeader:
    """The `workers` are ranks 1, 2 and so on of `instance`. A worker that is alone, or is led itself, has none here.

    `taken` are requests of which the others have KV that is not laid down, or wait for some. `on_left` is called with
    what a rank says that belongs to the instance no more: the word of its end may have been lost.
    """

    def __init__(self, bus: Bus, instance: str = "", workers: Sequence[str] = ()) -> None:
        self.instance = instance
        self._bus = bus
        self._workers = workers
        self._blocks: dict[int, AbstractSet[int]] = {rank: frozenset() for rank, _ in enumerate(workers, start=1)}
        self._links: dict[int, bytes] = {}
        self.taken: set[str] = set()
        self.told = 0  # steps
        self.on_left: Callable[[str], None] = lambda said: None
        self._has_ended = False

    @property
    def size(self) -> int:
        return 1 + len(self._workers)

    @property
    def others(self) -> list[Node]:
        """Where the ranks that are led are reached, in order."""
        ranks = enumerate(self._workers, start=1)
        return [Node(id=id, place="worker", address=self._links.get(rank, b"")) for rank, id in ranks]

    def asked(self, ask: AskMeeting) -> None:
        """Note what a rank has said: where it is reached, and which blocks it has."""
        self._links[ask.rank] = ask.address
        if ask.rank in self._blocks:
            self._blocks[ask.rank] = frozenset(ask.blocks)

    def whole(self, instance: str) -> None:
        """Note that each rank has everything, as the planner says."""
        if instance == self.instance:
            self._blocks.clear()

    def everywhere(self, own: AbstractSet[int]) -> AbstractSet[int]:
        """Return those of this rank's blocks that all ranks have: a layer is ready when the slowest rank has it."""
        return frozenset(own).intersection(*self._blocks.values())

    def tell(self, batch: Batch) -> None:
        """Have the others run this batch, as this rank is going to."""
        self._tell_step(batch)
        self.taken.difference_update(one.request_id for one in batch.imports)

    def tell_blocks(self, blocks: range, pieces: Sequence[ScheduledChunk]) -> None:
        """Have the others run these pieces through the same part of the model as this rank."""
        self._tell_step(Batch(0, tuple(pieces)), None, blocks)

    def tell_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        """Have the others run the next layer of these, as this rank is going to."""
        pieces = tuple(piece for partial in partials for piece in partial.chunks)
        self._tell_step(Batch(0, pieces), partials[0].done)

    def give(self, blocks: range, layers: int, channel: Channel, to: Sequence[Node]) -> None:
        """Have each of the others send its KV of a request to the rank of another instance that has the same shard."""
        self.told += 1
        for worker, node in zip(self._workers, to, strict=True):
            give = RankGive(
                instance=self.instance,
                step=self.told,
                first_block=blocks.start,
                blocks=len(blocks),
                layers=layers,
                to=node,
                ticket=channel.ticket,
                secret=channel.secret,
            )
            self._bus.publish(RANK_STEP, give, id=worker)

    async def take(self, request_id: str, channel: Channel, senders: Sequence[Node], size_bytes: int) -> None:
        """Return once each of the others has its part of a request's KV. Raises LinkError."""
        takes = [
            RankTake(
                instance=self.instance,
                request_id=request_id,
                sender=sender,
                ticket=channel.ticket,
                size_bytes=size_bytes,
                after=self.told,
                secret=channel.secret,
            )
            for sender in senders
        ]
        if takes:
            self.taken.add(request_id)
        try:
            await together(*map(self._take, self._workers, takes))
        except BusError as error:
            raise LinkError(f"another rank has no KV: {error}") from error

    def keep(self, wanted: Collection[str]) -> None:
        """Have the others drop KV of all requests but these."""
        if self.taken.issubset(wanted):
            return
        self.taken.intersection_update(wanted)
        self.told += 1
        keep = RankKeep(instance=self.instance, step=self.told, requests=sorted(self.taken))
        for worker in self._workers:
            self._bus.publish(RANK_STEP, keep, id=worker)

    def end(self) -> None:
        """Note that the instance has ended: nobody is asked for anything again."""
        self._has_ended = True

    async def bring(self, version: str) -> None:
        """Return once each of the others has this adapter. One that does not answer may be dead, of which this worker
        is told. Raises AdapterUnavailable."""
        failure = ""
        try:
            async with asyncio.timeout(BRING_SECONDS):
                while not self._has_ended:
                    ask = RankAdapter(instance=self.instance, version=version, after=self.told)
                    try:
                        await together(*(self._bring(worker, ask) for worker in self._workers))
                    except BusError as error:
                        if isinstance(error, Refusal) and error.code == UNAVAILABLE:
                            raise AdapterUnavailable(f"another rank: {error.message}") from error
                        if isinstance(error, Refusal) and error.code == LEFT:
                            self.on_left(error.message)
                            break
                        failure = str(error)
                    else:
                        return
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise AdapterUnavailable(f"another rank did not say that it has adapter {version}: {failure}") from None
        raise AdapterUnavailable("the instance has ended")

    def forget(self, version: str) -> None:
        """Have the others forget an adapter after the steps that they were told of before."""
        if not self._workers:
            return
        self.told += 1
        forget = RankForget(instance=self.instance, step=self.told, version=version)
        for worker in self._workers:
            self._bus.publish(RANK_STEP, forget, id=worker)

    async def _bring(self, worker: str, ask: RankAdapter) -> None:
        await self._bus.call(RANK_ADAPTER, ask, timeout=ADAPTER_SECONDS, id=worker)

    async def _take(self, worker: str, take: RankTake) -> None:
        await self._bus.call(RANK_TAKE, take, timeout=KV_SECONDS, id=worker)

    def _tell_step(self, batch: Batch, layer: int | None = None, blocks: range | None = None) -> None:
        if not self._workers:
            return
        self.told += 1
        step = RankStep(
            instance=self.instance,
            step=self.told,
            batch=encode_batch(batch),
            layer=layer,
            first=None if blocks is None else blocks.start,
            stop=0 if blocks is None else blocks.stop,
        )
        for worker in self._workers:
            self._bus.publish(RANK_STEP, step, id=worker)
