"""A process of gloo's broadcast: it has an arena, and takes part when it is told to over a pipe."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import msgspec
import torch
import torch.distributed as dist
import xxhash

from livescale.load.bench.transfer.node import fill
from livescale.load.bench.transfer.node_messages import (
    Broadcast,
    Done,
    Failed,
    GlooRank,
    Hello,
    end_with_parent,
    tell,
)
from livescale.shared.memory.arena import Arena, placed_bytes

PATIENCE = timedelta(seconds=60)


def main(descriptor: int) -> None:
    """Take part in one broadcast after the other until the pipe brings nothing, or ends."""
    end_with_parent()
    torch.set_num_threads(1)
    with Connection(descriptor) as pipe, suppress(EOFError, KeyboardInterrupt):
        try:
            _serve(pipe, msgspec.msgpack.decode(pipe.recv_bytes(), type=GlooRank))
        except RuntimeError as error:  # whatever gloo may say
            tell(pipe, Failed(str(error)))


def _serve(pipe: Connection, own: GlooRank) -> None:
    memory = Arena(placed_bytes(own.sizes)).place(own.sizes)
    blocks = [fill(index, view) for index, view in enumerate(memory)] if own.rank == 0 else []
    dist.init_process_group(
        "gloo", init_method=f"tcp://{own.leader}", rank=own.rank, world_size=own.count, timeout=PATIENCE
    )
    parameters = Parameters(memory, [torch.frombuffer(view, dtype=torch.uint8) for view in memory])
    tell(pipe, Hello(b"", tuple(blocks)))
    while data := pipe.recv_bytes():
        job = msgspec.msgpack.decode(data, type=Broadcast)
        tell(pipe, parameters.timed(job))
        if own.rank != 0:
            parameters.wipe()
    dist.destroy_process_group()


@dataclass(frozen=True)
class Parameters:
    """The set of blocks, as bytes and as tensors over them."""

    memory: Sequence[memoryview]
    tensors: Sequence[torch.Tensor]

    def timed(self, job: Broadcast) -> Done | Failed:
        began, cpu = time.monotonic(), time.process_time()
        for tensor in self.tensors:
            dist.broadcast(tensor, src=0)
        done = Done(began=began, ended=time.monotonic(), cpu=time.process_time() - cpu)
        whole = all(xxhash.xxh3_64_intdigest(self.memory[block.index]) == block.checksum for block in job.blocks)
        return done if whole else Failed("the broadcast delivered other bytes than were sent")

    def wipe(self) -> None:
        """What was left must not let the next broadcast pass."""
        for tensor in self.tensors:
            tensor.zero_()
