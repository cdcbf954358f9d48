"""What fake workers and hosts share: membership, sending, and how long bytes and tokens take in virtual time."""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context

from livescale.shared.bus.contract import Ack, Bus, Context
from livescale.shared.messages.membership import Holding
from livescale.shared.messages.parameters import Block, Manifest, ModelConfig
from livescale.shared.messages.transfers import Abort, Send
from livescale.shared.simulation.processes import Process, this_process
from tests.clocks import LoopClock

CLOCK = LoopClock(epoch=1_000_000.0)
BLOCKS, BLOCK_BYTES = 4, 1_000_000
SIZE = BLOCKS * BLOCK_BYTES
RATE = 20e6  # bytes a second between any two
STEP_SECONDS = 0.02
PREFILL_RATE = 2_000.0
SLOTS = 4
PATIENCE_SECONDS = 2.0  # a block is waited for
ALONE_SECONDS = 10.0  # seconds that a host waits for another process that has the model


def manifest(version: str) -> Manifest:
    config = ModelConfig(
        family="llama",
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=BLOCKS - 2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=512,
    )
    blocks = [Block(index=i, name=f"b{i}", size_bytes=BLOCK_BYTES, checksum=0, tensors=[]) for i in range(BLOCKS)]
    return Manifest(version=version, config=config, dtype="float32", blocks=blocks)


def whole(model: str, version: str) -> Holding:
    return Holding(model=model, version=version, ready=list(range(BLOCKS)), total=BLOCKS)


def start(node: "Node", work: Coroutine[None, None, None]) -> None:
    """Start a task in its own process, whichever process asks for it; nothing starts in a process that is ending."""
    try:
        node.tasks.create_task(work, context=node.context.copy())
    except RuntimeError:
        work.close()


class Node:
    """What a fake worker and a fake host have in common: membership and sending."""

    def __init__(self, bus: Bus, fabric: dict[str, "Node"]) -> None:
        self.bus = bus
        self.fabric = fabric
        self.tasks: asyncio.TaskGroup = asyncio.TaskGroup()
        self.context = copy_context()
        self.process: Process | None = None
        self.sends: list[Send] = []
        self.aborts: list[Abort] = []

    def enter(self) -> None:
        """Make this node the work of its process from now on."""
        self.context, self.process = copy_context(), this_process()

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped, so that it sends nothing."""
        return self.process is not None and self.process.is_stopped

    async def send(self, send: Send, context: Context) -> Ack:
        self.sends.append(send)
        for flow in send.outflows:
            target = self.fabric.get(flow.downstream.id)
            if target is not None:  # processes that are gone get nothing
                target.begin(flow.ticket)
        return Ack()

    def has(self, version: str, index: int) -> bool:
        """Whether the block can be passed on."""
        raise NotImplementedError

    def begin(self, ticket: int) -> None:
        """Receive bytes along a flow."""
        raise NotImplementedError
